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
import type { CallContext, Engine, EngineNotice, GenerateRequest, RenderRequest } from '../engine.ts';
import { createEngine } from '../engine-kinds.ts';
import { captureModeOf } from './compatibility.ts';
import { CALL_PATIENCE_MS, Dispatcher } from './dispatcher.ts';
import type { EnginePools, PauseOptions, PooledReply, PoolMode } from './engine-pools.ts';
import { relabelledMetrics } from './exposition.ts';
import { PauseGate, Pausing } from './pausing.ts';
import { EngineRegistry } from './registry.ts';
import { RelayedReply, resumeGeneration, type SampledReply } from './resume-generation.ts';

/** Interval at which an empty pool is checked for its first engine, which may be registered through the API at any time. */
const EMPTY_POOL_POLL_MS = 100;

export type EnginePoolsDeps = {
  readonly clock: Clock;
  /** Receives messages about engines that an operator should see. When absent, the messages are dropped. */
  readonly notice?: EngineNotice;
  /** Policy that chooses the engine of a call, in all pools; `least_in_flight` when absent. */
  readonly policy?: EnginePolicy;
  /** Whether engines on this host are preferred while they have free slots; `none`, no preference, when absent. */
  readonly locality?: EngineLocality;
  /** A name or address of this host, in addition to those that the operating system reports. */
  readonly host?: string | null;
  /** Connects to an engine when it is registered and when it is verified; {@link createEngine} when absent. */
  readonly connect?: (spec: EngineSpec) => Promise<Engine>;
};

/** Makes pools and connects to every engine of `specs`. Rejects as `EnginePools.register` does, after closing all connections. */
export async function createEnginePools(specs: readonly EngineSpec[], deps: EnginePoolsDeps): Promise<EnginePools> {
  const pools = enginePoolsOf([], deps);
  const settled = await Promise.allSettled(specs.map((spec) => pools.register(spec)));
  const failed = settled.find((result) => result.status === 'rejected');
  if (failed === undefined) return pools;
  await pools.close();
  throw failed.reason;
}

/**
 * Makes pools of engines that are connected already. Closing the pools closes these engines. Throws the errors with which
 * `EnginePools.register` rejects.
 */
export function enginePoolsOf(engines: readonly Engine[], deps: EnginePoolsDeps): EnginePools {
  return new ManagedEnginePools(deps, engines);
}

class ManagedEnginePools implements EnginePools {
  private readonly clock: Clock;
  private readonly notice: EngineNotice;
  private readonly registry: EngineRegistry;
  private readonly dispatcher: Dispatcher;
  private readonly pausing: Pausing;
  private policyVersion: string | null = null;

  /** Makes the pools with the engines in `connected`, which are never reconnected because there is no specification to connect with. */
  constructor(deps: EnginePoolsDeps, connected: readonly Engine[]) {
    const { clock, notice = () => {}, policy = 'least_in_flight', locality = 'none', host = null } = deps;
    const connect = deps.connect ?? ((spec) => createEngine(spec, { clock, notice }));
    const gate = new PauseGate();
    this.clock = clock;
    this.notice = notice;
    const policyVersion = (): string | null => this.policyVersion;
    this.registry = new EngineRegistry({ clock, notice, policy, locality, host, connect, policyVersion });
    this.dispatcher = new Dispatcher({ clock, gate, poolOf: (name) => this.registry.poolOf(name) });
    this.pausing = new Pausing({ notice, gate, members: () => this.registry.members });
    for (const engine of connected) this.registry.add(engine, specOf(engine.info()), null);
  }

  info(): EngineInfo[] {
    return this.registry.members.map((member) => member.info());
  }

  modeOf(pool: string, requested: EngineMode): PoolMode {
    return captureModeOf(pool, this.infoOf(pool), requested);
  }

  async ready(pool: string, signal: AbortSignal): Promise<void> {
    const deadlineMs = this.clock.monotonicMs() + CALL_PATIENCE_MS;
    while (this.registry.membersOf(pool).length === 0) {
      if (this.clock.monotonicMs() >= deadlineMs) {
        throw new FloeError('engine_unavailable', `no engine is registered in pool ${pool}`);
      }
      await sleep(this.clock, EMPTY_POOL_POLL_MS, signal);
    }
  }

  maxModelLen(pool: string): number | null {
    const lengths = this.infoOf(pool).map((info) => info.max_model_len);
    const known = lengths.filter((length) => length !== null);
    return known.length === 0 || known.length < lengths.length ? null : Math.min(...known);
  }

  async generate(request: GenerateRequest, signal: AbortSignal): Promise<PooledReply> {
    const ticket = this.dispatcher.ticket();
    const relay = request.listener && new RelayedReply(request.listener);
    const sample = (
      next: GenerateRequest,
      listener: RelayedReply | undefined,
      admitted: boolean,
    ): Promise<SampledReply> => this.sample(next, listener, { ticket, admitted }, signal);
    const first = await sample(request, relay, false);
    if (first.reply.finishReason !== 'abort') return first;
    const acceptsIds = (pool: string): boolean => this.registry.membersOf(pool).some((member) => member.acceptsIds);
    const deps = { clock: this.clock, notice: this.notice, sample, acceptsIds };
    return resumeGeneration(deps, request, first, relay, signal);
  }

  isWaiting(sessionId: string): boolean {
    return this.dispatcher.isWaiting(sessionId);
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

  detokenize(ids: Int32Array, context: CallContext, signal: AbortSignal): Promise<string> {
    return this.lookUp(context, signal, (engine, callSignal) => engine.detokenize(ids, callSignal));
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
    const texts = await Promise.all(
      this.registry.members.map(async (member) => {
        const text = await member.metrics();
        return text === null ? null : { engineId: member.id, pool: member.spec.pool, text };
      }),
    );
    return relabelledMetrics(texts.filter((text) => text !== null));
  }

  close(): Promise<void> {
    return this.registry.close();
  }

  private infoOf(pool: string): EngineInfo[] {
    return this.registry.membersOf(pool).map((member) => member.info());
  }

  /** Sends a call that samples nothing to an engine of the pool. Such a call takes no slot and is not held at the pause gate. */
  private lookUp<T>(
    context: CallContext,
    signal: AbortSignal,
    run: (engine: Engine, signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    const call = {
      context,
      sampling: false,
      ids: false,
      admitted: false,
      ticket: this.dispatcher.ticket(),
      rejectionBy: () => null,
      run,
      tokensOf: () => 0,
    };
    return this.dispatcher.send(call, signal);
  }

  private sample(
    request: GenerateRequest,
    relay: RelayedReply | undefined,
    turn: { readonly ticket: number; readonly admitted: boolean },
    signal: AbortSignal,
  ): Promise<SampledReply> {
    const run = async (engine: Engine, callSignal: AbortSignal): Promise<SampledReply> => {
      const startMs = this.clock.monotonicMs();
      const salted = { ...request, cacheSalt: this.cacheSaltFor(engine.info()), listener: relay };
      try {
        const reply = await engine.generate(salted, callSignal);
        const { engine_id, model, max_model_len, capabilities } = engine.info();
        const { fingerprint } = capabilities.template;
        const engineMs = this.clock.monotonicMs() - startMs;
        return { reply, engineId: engine_id, model, engineMs, maxModelLen: max_model_len, fingerprint };
      } catch (error) {
        throw relay === undefined ? error : relay.finalFailure(error);
      }
    };
    const call = {
      context: request,
      sampling: true,
      ids: request.prompt !== null,
      ...turn,
      rejectionBy: (engine: EngineInfo) => foreignPromptError(request, engine),
      run,
      tokensOf: ({ reply: { usage } }: SampledReply) => usage.prompt_tokens + usage.completion_tokens,
    };
    return this.dispatcher.send(call, signal);
  }

  /**
   * Returns the salt for this engine's prefix cache, which is the version that this engine reports: an engine that is updated later than
   * the others must not share their salt.
   */
  private cacheSaltFor({ capabilities, policy_version }: EngineInfo): string | null {
    return capabilities.cache_salt ? (policy_version ?? this.policyVersion) || null : null;
  }
}

/**
 * Returns the error for a prompt of ids that was made with another tokenizer or template than the engine's, which happens when the
 * pool's engines were replaced in between; `null` when they match.
 */
function foreignPromptError({ prompt }: GenerateRequest, { engine_id, capabilities }: EngineInfo): FloeError | null {
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
