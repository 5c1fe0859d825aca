import { type Clock, sleep } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import type {
  EngineInfo,
  EngineLocality,
  EngineMode,
  EnginePolicy,
  EngineSpec,
  PauseMode,
} from '../../schema/index.ts';
import type { CallNames, Engine, EngineNotice, GenerateRequest, RenderRequest } from '../engine.ts';
import type { EnginePool, PauseOptions, PooledReply, PoolMode } from '../pool.ts';
import { generateWhole, type Sampled } from './continuation.ts';
import { withDeadline } from './deadline.ts';
import { Dispatcher, PATIENCE_MS } from './dispatcher.ts';
import { type EngineText, relabelled } from './exposition.ts';
import { Gate } from './gate.ts';
import type { Member } from './member.ts';
import { modeOf } from './mode.ts';
import { Pausing } from './pausing.ts';
import { EngineRegistry } from './registry.ts';
import type { RelayedReply } from './relayed.ts';

/** An empty pool is looked at this often: engines are registered now and then. */
const LOOK_AGAIN_MS = 100;

/** A scraper waits some ten seconds for all of them together. */
const METRICS_MS = 5_000;

export type EnginePoolsDeps = {
  readonly clock: Clock;
  readonly notice: EngineNotice;
  readonly policy: EnginePolicy;
  readonly locality: EngineLocality;
  readonly host: string | null;
  readonly connect: (spec: EngineSpec) => Promise<Engine>;
};

export class EnginePools implements EnginePool {
  private readonly clock: Clock;
  private readonly notice: EngineNotice;
  private readonly gate = new Gate();
  private readonly registry: EngineRegistry;
  private readonly dispatcher: Dispatcher;
  private readonly pausing: Pausing;
  private policyVersion: string | null = null;

  /** `given` are there from the start, and are never connected to anew. Throws as `register` rejects. */
  constructor(deps: EnginePoolsDeps, given: readonly Engine[] = []) {
    const { clock, notice } = deps;
    this.clock = clock;
    this.notice = notice;
    this.registry = new EngineRegistry({ ...deps, policyVersion: () => this.policyVersion });
    this.dispatcher = new Dispatcher({ clock, gate: this.gate, queueOf: (pool) => this.registry.queueOf(pool) });
    this.pausing = new Pausing({ clock, notice, gate: this.gate, members: () => this.registry.members });
    for (const engine of given) this.registry.add(engine, specOf(engine.info()), null);
  }

  info(): EngineInfo[] {
    return this.registry.members.map((member) => member.info());
  }

  modeOf(pool: string, asked: EngineMode): PoolMode {
    return modeOf(pool, this.infoOf(pool), asked);
  }

  async ready(pool: string, signal: AbortSignal): Promise<void> {
    const giveUpMs = this.clock.monotonicMs() + PATIENCE_MS;
    while (this.registry.membersOf(pool).length === 0) {
      if (this.clock.monotonicMs() >= giveUpMs) {
        throw new FloeError('engine_unavailable', `no engine is registered in pool ${pool}`);
      }
      await sleep(this.clock, LOOK_AGAIN_MS, signal);
    }
  }

  maxModelLen(pool: string): number | null {
    const lengths = this.infoOf(pool).map((info) => info.max_model_len);
    const known = lengths.filter((length) => length !== null);
    return known.length === 0 || known.length < lengths.length ? null : Math.min(...known);
  }

  generate(request: GenerateRequest, signal: AbortSignal): Promise<PooledReply> {
    const ticket = this.dispatcher.ticket();
    return generateWhole(
      {
        clock: this.clock,
        notice: this.notice,
        sample: (asked, relay, admitted) => this.sample(asked, relay, { ticket, admitted }, signal),
        takesIds: (pool) => this.registry.membersOf(pool).some((member) => member.takesIds),
      },
      request,
      signal,
    );
  }

  awaitsTurn(sessionId: string): boolean {
    return this.dispatcher.awaitsTurn(sessionId);
  }

  failureOf(sessionId: string): FloeError | null {
    return this.dispatcher.failureOf(sessionId);
  }

  countTokens(request: GenerateRequest, signal: AbortSignal): Promise<number> {
    return this.lookUp(request, signal, (engine, callSignal) => engine.countTokens(request, callSignal));
  }

  render(request: RenderRequest, signal: AbortSignal): Promise<Int32Array> {
    return this.lookUp(request, signal, (engine, callSignal) => engine.render(request, callSignal));
  }

  detokenize(ids: Int32Array, names: CallNames, signal: AbortSignal): Promise<string> {
    return this.lookUp(names, signal, (engine, callSignal) => engine.detokenize(ids, callSignal));
  }

  register(spec: EngineSpec): Promise<EngineInfo> {
    return this.registry.register(spec);
  }

  deregister(engineId: string | null, options: { readonly abort?: boolean } = {}): readonly string[] {
    return this.registry.deregister(engineId, options.abort ?? false);
  }

  pause(options: PauseOptions): Promise<void> {
    return this.pausing.pause(options);
  }

  resume(): Promise<void> {
    return this.pausing.resume();
  }

  get paused(): PauseMode | null {
    return this.pausing.paused;
  }

  setPolicyVersion(version: string): void {
    this.policyVersion = version;
    for (const member of this.registry.members) member.engine.setPolicyVersion(version);
  }

  async metrics(): Promise<string> {
    const texts = await Promise.all(this.registry.members.map((member) => this.metricsOf(member)));
    return relabelled(texts.filter((text) => text !== null));
  }

  close(): Promise<void> {
    return this.registry.close();
  }

  private infoOf(pool: string): EngineInfo[] {
    return this.registry.membersOf(pool).map((member) => member.info());
  }

  private lookUp<T>(
    names: CallNames,
    signal: AbortSignal,
    run: (engine: Engine, signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    const ticket = this.dispatcher.ticket();
    const job = {
      names,
      sampling: false,
      ids: false,
      admitted: false,
      ticket,
      unfit: () => null,
      run,
      tokensOf: () => 0,
    };
    return this.dispatcher.send(job, signal);
  }

  private sample(
    request: GenerateRequest,
    relay: RelayedReply | undefined,
    place: { readonly ticket: number; readonly admitted: boolean },
    signal: AbortSignal,
  ): Promise<Sampled> {
    const run = async (engine: Engine, callSignal: AbortSignal): Promise<Sampled> => {
      const startMs = this.clock.monotonicMs();
      const asked = { ...request, cacheSalt: this.cacheSaltOf(engine.info()), listener: relay };
      try {
        const reply = await engine.generate(asked, callSignal);
        const { engine_id, model, max_model_len, capabilities } = engine.info();
        const { fingerprint } = capabilities.template;
        const engineMs = this.clock.monotonicMs() - startMs;
        return { reply, engineId: engine_id, model, engineMs, maxModelLen: max_model_len, fingerprint };
      } catch (error) {
        throw relay === undefined ? error : relay.failure(error);
      }
    };
    const tokensOf = ({ reply: { usage } }: Sampled): number => usage.prompt_tokens + usage.completion_tokens;
    const unfit = (engine: EngineInfo): FloeError | null => foreignPrompt(request, engine);
    const job = { names: request, sampling: true, ids: request.prompt !== null, unfit, ...place, run, tokensOf };
    return this.dispatcher.send(job, signal);
  }

  /** The weights' name as the engine tells it: one that was updated later than the others must not be salted as they are. */
  private cacheSaltOf({ capabilities, policy_version }: EngineInfo): string | null {
    return capabilities.cache_salt ? (policy_version ?? this.policyVersion) || null : null;
  }

  private async metricsOf(member: Member): Promise<EngineText | null> {
    const what = `the metrics of engine ${member.id}`;
    try {
      const text = await withDeadline(this.clock, METRICS_MS, what, (signal) => member.engine.metrics(signal));
      return text === null ? null : { engineId: member.id, pool: member.spec.pool, text };
    } catch {
      // Left out, as promised: its absence in the text is what tells.
      return null;
    }
  }
}

/** The pool's engines may have been replaced by others while the prompt was made. */
function foreignPrompt({ prompt }: GenerateRequest, { engine_id, capabilities }: EngineInfo): FloeError | null {
  const { fingerprint } = capabilities.template;
  if (prompt?.fingerprint === undefined || prompt.fingerprint === fingerprint) return null;
  const message = `engine ${engine_id} has another tokenizer or template than the prompt was made with`;
  return new FloeError('engine_error', message, { engine_id });
}

function specOf(info: EngineInfo): EngineSpec {
  return {
    engine_id: info.engine_id,
    kind: info.kind,
    base_url: info.base_url,
    pool: info.pool,
    model: info.model,
    api_key: null,
    logprobs_mode: info.logprobs_mode ?? 'processed',
    stream: info.streaming ? 'auto' : 'off',
    max_concurrency: info.max_concurrency,
    limits: null,
    tool_parser: null,
    reasoning_parser: null,
  };
}
