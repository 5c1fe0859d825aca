import type { SampledWeights, SamplingSession, TinkerService } from './service.ts';

/** Beginning of the path of saved weights. */
const WEIGHTS_SCHEME = 'tinker://';

/** The sampling session of some weights, which is opened when it is needed and reopened after the server has ended it. */
class WeightsSession {
  private readonly service: TinkerService;
  private readonly weights: SampledWeights;
  private opened: SamplingSession | null = null;
  private opening: Promise<SamplingSession> | null = null;

  constructor(service: TinkerService, weights: SampledWeights) {
    this.service = service;
    this.weights = weights;
  }

  get(): Promise<SamplingSession> {
    if (this.opened !== null && this.service.isOpen(this.opened)) return Promise.resolve(this.opened);
    this.opening ??= this.open().finally(() => {
      this.opening = null;
    });
    return this.opening;
  }

  private async open(): Promise<SamplingSession> {
    this.opened = await this.service.openSamplingSession(this.weights);
    return this.opened;
  }
}

/** The weights that replies are sampled from, and the policy version that is recorded with these replies. A sampler never changes. */
export class Sampler {
  readonly version: string;
  private readonly service: TinkerService;
  private readonly weights: WeightsSession;

  private constructor(service: TinkerService, weights: WeightsSession, version: string) {
    this.service = service;
    this.weights = weights;
    this.version = version;
  }

  /** Returns the sampler of a model: the path of saved weights or the name of a base model, which is also its version. */
  static of(service: TinkerService, model: string): Sampler {
    const weights = model.startsWith(WEIGHTS_SCHEME) ? { model_path: model } : { base_model: model };
    return new Sampler(service, new WeightsSession(service, weights), model);
  }

  /**
   * Returns the sampler after a change of the version. When `version` is the path of weights, it is a sampler of these weights. Otherwise it
   * is a sampler of the same weights with the new version.
   */
  withVersion(version: string): Sampler {
    if (version.startsWith(WEIGHTS_SCHEME)) return Sampler.of(this.service, version);
    return new Sampler(this.service, this.weights, version);
  }

  /** Returns the sampling session, which is opened if necessary. Rejects with the error of the server. */
  session(): Promise<SamplingSession> {
    return this.weights.get();
  }
}
