import { type Clock, type FloeError, sleep } from '@floe-rl/core';
import type {
  EngineInfo,
  EngineLocality,
  EngineMode,
  EnginePolicy,
  EngineSpec,
  PauseMode,
  Place,
} from '@floe-rl/core/schema';
import { constraintKindOf } from '../constraint.ts';
import type { CallContext, Engine, EngineNotice, GenerateRequest, RenderRequest } from '../engine.ts';
import { createEngine, type EngineKinds } from '../engine-kinds.ts';
import { captureModeOf } from './compatibility.ts';
import type { EnginePools, PauseOptions, PooledReply, PoolMode, UnpausedEngine } from './engine-pools.ts';
import { relabelledMetrics } from './exposition.ts';
import type { Member } from './member.ts';
import { PauseGate, Pausing } from './pausing.ts';
import { CALL_PATIENCE_MS, type EngineCall, emptyPoolError, PooledCall, type PooledCallDeps } from './pooled-call.ts';
import { EngineRegistry } from './registry.ts';
import { RelayedReply } from './relayed-reply.ts';
import { resumeGeneration, type SampledReply } from './resume-generation.ts';
import { WaitingCalls } from './waiting-calls.ts';

export type EnginePoolsDeps = {
  readonly clock: Clock;
  /** Receives messages about engines that an operator should see. When absent, the messages are dropped. */
  readonly notice?: EngineNotice;
  /** Policy that chooses the engine of a call; it applies to all pools. `least_in_flight` when absent. */
  readonly policy?: EnginePolicy;
  /** Whether engines on this host are preferred while they have free slots; `none`, no preference, when absent. */
  readonly locality?: EngineLocality;
  /** A name or address of this host that identifies local engines, in addition to what the operating system reports. */
  readonly host?: string | null;
  /** Rack and zone of this host; by default not known. */
  readonly place?: Place;
  /** The engine modules of the operator; absent when there are none. */
  readonly kinds?: EngineKinds;
  /** Connects to an engine at its registration and whenever it is verified; {@link createEngine} when absent. */
  readonly connect?: (spec: EngineSpec) => Promise<Engine>;
};

const UNKNOWN_PLACE: Place = { rack: null, zone: null };

/** Interval in milliseconds at which an empty pool is checked for an engine, which may be registered through the API at any time. */
const EMPTY_POOL_POLL_MS = 100;

/**
 * Creates the pools and connects to every engine of `specs`. When one cannot be registered, it closes all connections and rejects with the
 * error of `EnginePools.register`.
 */
export async function createEnginePools(specs: readonly EngineSpec[], deps: EnginePoolsDeps): Promise<EnginePools> {
  const pools = enginePoolsOf([], deps);
  const settled = await Promise.allSettled(specs.map((spec) => pools.register(spec)));
  const failed = settled.find((result) => result.status === 'rejected');
  if (failed === undefined) return pools;
  await pools.close();
  throw failed.reason;
}

/** Creates pools of engines that are connected already. Closing the pools closes these engines. Throws the errors of `EnginePools.register`. */
export function enginePoolsOf(engines: readonly Engine[], deps: EnginePoolsDeps): EnginePools {
  return new ManagedEnginePools(deps, engines);
}

class ManagedEnginePools implements EnginePools {
  private readonly clock: Clock;
  private readonly notice: EngineNotice;
  private readonly registry: EngineRegistry;
  private readonly waiting = new WaitingCalls();
  private readonly calls: PooledCallDeps;
  private readonly pausing: Pausing;
  private policyVersion: string | null = null;
  private nextTicket = 0;

  /** Adds the engines in `connected` to their pools. They are never reconnected, because there is no specification to connect with. */
  constructor(deps: EnginePoolsDeps, connected: readonly Engine[]) {
    const {
      clock,
      notice = () => {},
      policy = 'least_in_flight',
      locality = 'none',
      host = null,
      place = UNKNOWN_PLACE,
      kinds = new Map(),
    } = deps;
    const connect = deps.connect ?? ((spec) => createEngine(spec, { clock, notice, kinds }));
    const gate = new PauseGate();
    this.clock = clock;
    this.notice = notice;
    const policyVersion = (): string | null => this.policyVersion;
    this.registry = new EngineRegistry({ clock, notice, policy, locality, host, place, connect, policyVersion });
    this.calls = { clock, gate, registry: this.registry, waiting: this.waiting };
    const members = (): readonly Member[] => this.registry.members;
    const leaving = (): readonly Member[] => this.registry.leaving;
    this.pausing = new Pausing({ notice, gate, members, leaving });
    for (const engine of connected) this.registry.add(engine, specOf(engine.info()), null);
  }

  info(): EngineInfo[] {
    return this.registry.members.map((member) => member.info());
  }

  modeOf(pool: string, requested: EngineMode): PoolMode {
    const infos = this.registry.membersOf(pool).map((member) => member.engine.info());
    return captureModeOf(pool, infos, requested);
  }

  async modeWhenReady(context: CallContext, requested: EngineMode, signal: AbortSignal): Promise<PoolMode> {
    const { clock, registry, waiting } = this;
    const deadlineMs = clock.monotonicMs() + CALL_PATIENCE_MS;
    const call = { context };
    let pool = registry.poolOf(context.pool);
    try {
      for (; pool === null; pool = registry.poolOf(context.pool)) {
        const failure = emptyPoolError(context);
        if (clock.monotonicMs() >= deadlineMs) throw failure;
        waiting.failed(call, failure);
        await sleep(clock, EMPTY_POOL_POLL_MS, signal);
      }
    } finally {
      waiting.forgetFailure(call);
    }
    const infos = pool.engines.map(({ engine }) => engine.info());
    return captureModeOf(context.pool, infos, requested);
  }

  maxModelLen(pool: string): number | null {
    const lengths = this.infoOf(pool).map((info) => info.max_model_len);
    const known = lengths.filter((length) => length !== null);
    return known.length === 0 || known.length < lengths.length ? null : Math.min(...known);
  }

  async generate(request: GenerateRequest, signal: AbortSignal): Promise<PooledReply> {
    const ticket = this.nextTicket++;
    // A reply under a constraint is not forwarded while it is sampled, because it is sampled again when a weight update interrupts it.
    const isRelayed = request.listener !== undefined && constraintKindOf(request) === null;
    const relay = isRelayed ? new RelayedReply(request.listener, request.stop) : undefined;
    const sample = (
      next: GenerateRequest,
      listener: RelayedReply | undefined,
      admitted: boolean,
    ): Promise<SampledReply> => this.sample(next, listener, { ticket, admitted }, signal);
    const first = await sample(request, relay, false);
    if (first.reply.finishReason !== 'abort') return first;
    const acceptsIds = (pool: string): boolean => this.registry.membersOf(pool).some((member) => member.acceptsIds);
    const decode = (ids: Int32Array): Promise<string> => this.detokenize(ids, request, signal);
    const deps = { clock: this.clock, notice: this.notice, sample, acceptsIds, decode };
    return resumeGeneration(deps, request, first, relay, signal);
  }

  isWaiting(sessionId: string): boolean {
    return this.waiting.isWaiting(sessionId);
  }

  failureOf(completionId: string): FloeError | null {
    return this.waiting.failureOf(completionId);
  }

  countTokens(request: GenerateRequest, signal: AbortSignal): Promise<number> {
    const call = lookUp(request, (engine, callSignal) => engine.countTokens(request, callSignal));
    return new PooledCall(call, this.calls, signal).answer();
  }

  render(request: RenderRequest, signal: AbortSignal): Promise<Int32Array> {
    const call = lookUp(request, (engine, callSignal) => engine.render(request, callSignal));
    return new PooledCall(call, this.calls, signal).answer();
  }

  detokenize(ids: Int32Array, context: CallContext, signal: AbortSignal): Promise<string> {
    const call = lookUp(context, (engine, callSignal) => engine.detokenize(ids, callSignal));
    return new PooledCall(call, this.calls, signal).answer();
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

  get unpaused(): readonly UnpausedEngine[] {
    return this.pausing.unpaused;
  }

  setPolicyVersion(version: string): void {
    this.policyVersion = version;
    for (const member of [...this.registry.members, ...this.registry.leaving]) member.setPolicyVersion(version);
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

  private sample(
    request: GenerateRequest,
    relay: RelayedReply | undefined,
    turn: { readonly ticket: number; readonly admitted: boolean },
    signal: AbortSignal,
  ): Promise<SampledReply> {
    const run = async (
      engine: Engine,
      callSignal: AbortSignal,
      policyVersion: string | null,
    ): Promise<SampledReply> => {
      const startMs = this.clock.monotonicMs();
      try {
        const reply = await engine.generate({ ...request, policyVersion, listener: relay }, callSignal);
        const { engine_id, model, max_model_len, capabilities } = engine.info();
        const { fingerprint } = capabilities.template;
        const engineMs = this.clock.monotonicMs() - startMs;
        return { reply, engineId: engine_id, model, engineMs, maxModelLen: max_model_len, fingerprint };
      } catch (error) {
        throw relay === undefined ? error : relay.finalFailure(error);
      }
    };
    const tokensOf = ({ reply: { usage } }: SampledReply): number => usage.prompt_tokens + usage.completion_tokens;
    const call = { context: request, sampling: true, prompt: request.prompt, ...turn, run, tokensOf };
    return new PooledCall(call, this.calls, signal).answer();
  }
}

/** Makes a call that samples nothing. It takes no slot and does not wait while the engines are paused. */
function lookUp<T>(context: CallContext, run: (engine: Engine, signal: AbortSignal) => Promise<T>): EngineCall<T> {
  const tokensOf = (): number => 0;
  return { context, sampling: false, prompt: null, admitted: false, ticket: 0, run, tokensOf };
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
    place: UNKNOWN_PLACE,
    adaptive_concurrency: null,
    limits: null,
    tool_parser: null,
    reasoning_parser: null,
    token_ids: 'auto',
    tokenizer: null,
  };
}
