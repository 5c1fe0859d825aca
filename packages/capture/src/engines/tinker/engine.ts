import type { Clock } from '@floe-rl/core';
import type { EngineCapabilities, EngineInfo, EngineSpec } from '@floe-rl/core/schema';
import { CallHealth } from '../call-health.ts';
import { concatIds, concatLogprobs, joinVersionSpans, resumedUsage } from '../chat/reply-tokens.ts';
import { checkedSample } from '../checked-sample.ts';
import type { Engine, GenerateReply, GenerateRequest, PromptIds, RenderRequest, SampledTokens } from '../engine.ts';
import { LocalText, replyBound } from '../local-text.ts';
import type { ProbedLogprobs } from '../logprobs-probe.ts';
import { probeTinkerLogprobs } from './logprobs-mode.ts';
import { sampleBody, unsupportedSetting } from './request.ts';
import { Sampler } from './sampler.ts';
import { TinkerService } from './service.ts';

const NEVER_ABORTED = new AbortController().signal;

const NOTES = [
  'prompts are rendered and replies are parsed by floe, with the tokenizer and template of the folder `tokenizer`',
  'replies arrive whole',
  'tool choices other than auto and none, response formats, min_p and repetition_penalty are refused',
];

/**
 * Connects to a server with the API of Tinker's sampling service. Rejects with `setup_failed` when `spec` names no usable tokenizer,
 * `engine_unavailable` when the server cannot be reached, and `engine_error` when it refuses the API key or the model.
 */
export async function createTinkerEngine(spec: EngineSpec, { clock }: { readonly clock: Clock }): Promise<Engine> {
  const text = await LocalText.load(spec);
  const service = await TinkerService.connect(spec, clock);
  try {
    return new TinkerEngine(await connectedParts(spec, service, text));
  } catch (error) {
    await service.close();
    throw error;
  }
}

type Parts = {
  readonly spec: EngineSpec;
  readonly service: TinkerService;
  readonly text: LocalText;
  /** The sampler of the weights that the engine was registered with. */
  readonly sampler: Sampler;
  readonly model: string;
  readonly contextTokens: number | null;
  readonly logprobs: ProbedLogprobs;
};

async function connectedParts(spec: EngineSpec, service: TinkerService, text: LocalText): Promise<Parts> {
  const models = await service.models();
  const requested = spec.model ?? models[0]?.name ?? null;
  if (requested === null) throw service.server.error('engine_error', 'it lists no models; name the one to use');
  const sampler = Sampler.of(service, requested);
  const model = (await service.baseModelOf(await sampler.session())) ?? requested;
  const logprobs = await probeTinkerLogprobs(spec.logprobs_mode, text.greeting, async (body) =>
    service.sample(await sampler.session(), body, null, NEVER_ABORTED),
  );
  const contextTokens = models.find(({ name }) => name === model)?.contextTokens ?? text.contextTokens;
  return { spec, service, text, sampler, model, contextTokens, logprobs };
}

const NO_TOKENS: SampledTokens = {
  responseIds: new Int32Array(0),
  responseLogprobs: new Float32Array(0),
  versionSpans: [],
  routedExperts: null,
};

class TinkerEngine implements Engine {
  private readonly parts: Parts;
  private readonly calls: CallHealth;
  private readonly capabilities: EngineCapabilities;
  private sampler: Sampler;

  constructor(parts: Parts) {
    this.parts = parts;
    this.sampler = parts.sampler;
    this.calls = new CallHealth(parts.service.server.engineId);
    this.capabilities = {
      token_ids: true,
      token_input: 'generate',
      version_spans: false,
      pause: false,
      abort: parts.service.canCancel,
      cache_salt: false,
      notes: [...NOTES, ...parts.logprobs.notes],
      template: parts.text.facts,
    };
  }

  info(): EngineInfo {
    const { service, spec, model, contextTokens, logprobs } = this.parts;
    return {
      engine_id: service.server.engineId,
      kind: 'tinker',
      base_url: spec.base_url,
      pool: spec.pool,
      model,
      server_version: null,
      max_model_len: contextTokens,
      logprobs_mode: logprobs.mode,
      policy_version: this.sampler.version,
      healthy: this.calls.healthy,
      streaming: false,
      inflight: this.calls.inflight,
      max_concurrency: spec.max_concurrency,
      capabilities: this.capabilities,
    };
  }

  generate(request: GenerateRequest, signal: AbortSignal): Promise<GenerateReply> {
    return this.calls.track(async () => {
      const refusal = unsupportedSetting(this.parts.service.server, request);
      if (refusal !== null) throw refusal;
      return this.sample(request, this.parts.text.promptOf(request), request.resumeFrom ?? NO_TOKENS, signal);
    });
  }

  countTokens(request: GenerateRequest): Promise<number> {
    return this.calls.track(async () => this.parts.text.promptOf({ ...request, prompt: null }).ids.length);
  }

  render(request: RenderRequest): Promise<Int32Array> {
    return this.calls.track(async () => this.parts.text.render(request));
  }

  detokenize(ids: Int32Array): Promise<string> {
    return this.calls.track(async () => this.parts.text.decode(ids));
  }

  pause(): Promise<void> {
    return Promise.reject(this.parts.service.server.error('unsupported', 'the service cannot be paused'));
  }

  resume(): Promise<void> {
    return Promise.reject(this.parts.service.server.error('unsupported', 'the service cannot be paused'));
  }

  /** A version that is the path of saved weights (`tinker://…`) selects these weights. Any other version names the current weights. */
  setPolicyVersion(version: string): void {
    if (version !== this.sampler.version) this.sampler = this.sampler.withVersion(version);
  }

  policyVersion(): Promise<string | null> {
    return Promise.resolve(this.sampler.version);
  }

  weightsMayHaveChanged(): void {
    // Does nothing, because the weights of a sampling session never change. Every reply is recorded with the version of its session.
  }

  metrics(): Promise<string | null> {
    return Promise.resolve(null);
  }

  close(): Promise<void> {
    return this.parts.service.close();
  }

  private async sample(
    request: GenerateRequest,
    prompt: PromptIds,
    first: SampledTokens,
    signal: AbortSignal,
  ): Promise<GenerateReply> {
    const { service, text, contextTokens, logprobs } = this.parts;
    const { ends } = text;
    const { sampler } = this;
    const firstCount = first.responseIds.length;
    const { engineId } = service.server;
    const maxTokens = replyBound(request, { engineId, contextTokens, promptTokens: prompt.ids.length, firstCount });
    const promptJson = prompt.json.toString('latin1');
    const idsJson = firstCount === 0 ? promptJson : `${promptJson},${first.responseIds.join(',')}`;
    // The API accepts ids or strings, but not both. Where the request has stop strings, end tokens are therefore sent as their texts.
    const stop = request.stop.length === 0 ? ends.ids : [...request.stop, ...ends.texts];
    const body = sampleBody(request, { idsJson, maxTokens, stop });
    const response = await service.sample(await sampler.session(), body, request, signal);
    const sample = checkedSample(response, {
      maxTokens,
      endIds: ends.ids,
      contextTokens: prompt.ids.length + firstCount,
    });
    const responseIds = concatIds(first.responseIds, sample.ids);
    const spans = [{ version: sampler.version, start: 0, end: sample.ids.length }];
    return {
      promptIds: prompt.ids,
      responseIds,
      responseLogprobs: concatLogprobs(first.responseLogprobs, sample.logprobs),
      versionSpans: joinVersionSpans(first.versionSpans, firstCount, spans),
      routedExperts: null,
      logprobsMode: logprobs.mode,
      ...text.parsed(request, responseIds, sample),
      usage: resumedUsage(prompt.ids.length, responseIds.length, sample.cachedTokens),
    };
  }
}
