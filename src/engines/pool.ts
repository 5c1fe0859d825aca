import { createHash } from 'node:crypto';
import { type Clock, sleep } from '../core/clock.ts';
import { FloeError } from '../core/errors.ts';
import type { ReplyDelta } from '../core/reply-delta.ts';
import type { CaptureMode, EngineInfo, EngineMode, EngineSpec, PauseMode, TemplateFacts } from '../schema/index.ts';
import { createEngine } from './create.ts';
import type {
  CallNames,
  Engine,
  EngineNotice,
  GenerateReply,
  GenerateRequest,
  RenderRequest,
  ReplyListener,
} from './engine.ts';

/** A reply and the engine that gave it. `engineMs` is its last, successful call alone. */
export type PooledReply = {
  readonly reply: GenerateReply;
  readonly engineId: string;
  readonly model: string;
  readonly engineMs: number;
};

/** How calls of a session are captured, and the template facts that hold for every engine that may answer them. */
export type PoolMode = { readonly mode: CaptureMode; readonly template: TemplateFacts };

export type PauseOptions = {
  readonly mode: PauseMode;
  /** What a call meets meanwhile: it waits, or `overloaded` with `details.paused` and `details.retry_after_ms`. */
  readonly whilePaused: 'hold' | 'reject';
};

/**
 * The engines of this process, in named pools; those of one pool serve one policy. A call goes to the engine that the pool's policy
 * picks. A call to which no reply began is tried again, elsewhere or after a pause, for up to {@link PATIENCE_MS} or until the
 * signal aborts; never one whose listener has been given a delta. A reply that an update broke off is continued from where it
 * stopped, where the engine takes ids.
 * `generate`, `countTokens`, `render` and `detokenize` reject as an `Engine` does, and with `engine_unavailable` when there is no engine.
 */
export interface EnginePool {
  info(): EngineInfo[];
  /**
   * Throws `unsupported` when `tokens` is asked for and an engine of the pool cannot, `engine_unavailable` when the pool is empty.
   * Capture mode `text` where the engines tell no ids.
   */
  modeOf(pool: string, asked: EngineMode): PoolMode;
  /** What every engine of the pool has room for; null when one does not tell. */
  maxModelLen(pool: string): number | null;
  generate(request: GenerateRequest, signal: AbortSignal): Promise<PooledReply>;
  countTokens(request: GenerateRequest, signal: AbortSignal): Promise<number>;
  render(request: RenderRequest, signal: AbortSignal): Promise<Int32Array>;
  detokenize(ids: Int32Array, names: CallNames, signal: AbortSignal): Promise<string>;
  /**
   * Connects to one more engine. Rejects as `createEngine` does, with `conflict` for an id that is taken by another spec, and with
   * `engine_error` for one whose tokenizer or template is not that of its pool. The same spec twice is one engine.
   */
  register(spec: EngineSpec): Promise<EngineInfo>;
  /**
   * From when this returns on, no call reaches the engine of that id, nor any engine without an id. Calls under way end by
   * themselves, or at once with `abort`. Returns the ids of those that are gone.
   */
  deregister(engineId: string | null, options?: { readonly abort?: boolean }): readonly string[];
  /** Resolves when every engine that can pause has been told. New calls wait or are refused from when this is called. */
  pause(options: PauseOptions): Promise<void>;
  resume(): Promise<void>;
  readonly paused: PauseMode | null;
  /** The weights' name from now on, for engines that do not tell their own; and the prefix cache's salt. */
  setPolicyVersion(version: string): void;
  /** The engines' own metrics, each with the labels `engine_id` and `pool`. Engines that do not answer are left out. */
  metrics(): Promise<string>;
  /** Closes the engines. May be called twice. */
  close(): Promise<void>;
}

/** Weight updates and restarts take engines away for about this long; a session should outlive them. */
const PATIENCE_MS = 60_000;
/** A request that makes engines drop their connections must not be sent round all of them for ever. */
const MAX_LOST_CONNECTIONS = 3;
/** First pause after every engine was tried; doubles up to {@link MAX_PAUSE_MS}. */
const FIRST_PAUSE_MS = 100;
const MAX_PAUSE_MS = 5_000;
/** A single failure may be one bad request; this many in a row are the engine. */
const FAILURES_UNTIL_AVOIDED = 3;
/** How long an engine is passed over before one call tries it again. */
const AVOIDED_MS = 5_000;

export type EnginePoolDeps = {
  readonly clock: Clock;
  /** Where engines tell what their operator should know; default: nowhere. */
  readonly notice?: EngineNotice;
};

/** Connects to every engine. Rejects as `createEngine` does, with no engine left open. */
export async function createEnginePool(specs: readonly EngineSpec[], deps: EnginePoolDeps): Promise<EnginePool> {
  const settled = await Promise.allSettled(specs.map((spec) => createEngine(spec, deps)));
  const engines = settled.flatMap((result) => (result.status === 'fulfilled' ? [result.value] : []));
  const failed = settled.find((result) => result.status === 'rejected');
  if (failed === undefined) return poolOf(engines, deps);
  await Promise.all(engines.map((engine) => engine.close()));
  throw failed.reason;
}

/** A pool of engines that exist already; it closes them when it is closed. */
export function poolOf(engines: readonly Engine[], deps: EnginePoolDeps): EnginePool {
  return new LeastBusyPool(engines, deps.clock);
}

type Member = { readonly engine: Engine; failures: number; avoidedUntilMs: number };

class LeastBusyPool implements EnginePool {
  private readonly members: readonly Member[];
  private readonly clock: Clock;

  constructor(engines: readonly Engine[], clock: Clock) {
    this.members = engines.map((engine) => ({ engine, failures: 0, avoidedUntilMs: 0 }));
    this.clock = clock;
  }

  info(): EngineInfo[] {
    return this.members.map((member) => ({
      ...member.engine.info(),
      healthy: member.failures < FAILURES_UNTIL_AVOIDED,
    }));
  }

  modeOf(pool: string, asked: EngineMode): PoolMode {
    const capabilities = this.members[0]?.engine.info().capabilities;
    if (capabilities === undefined) throw new FloeError('engine_unavailable', `pool ${pool} has no engine`);
    const tokens = capabilities.token_input !== 'none' && asked !== 'chat';
    return { mode: tokens ? 'tokens' : 'chat', template: capabilities.template };
  }

  maxModelLen(_pool: string): number | null {
    const lengths = this.members.map((member) => member.engine.info().max_model_len);
    const known = lengths.filter((length) => length !== null);
    return known.length === 0 || known.length < lengths.length ? null : Math.min(...known);
  }

  generate(request: GenerateRequest, signal: AbortSignal): Promise<PooledReply> {
    const relay = request.listener && new WatchedListener(request.listener);
    const watched = relay === undefined ? request : { ...request, listener: relay };
    return this.attempt(request, signal, async (engine) => {
      const startMs = this.clock.monotonicMs();
      try {
        const reply = await engine.generate(watched, signal);
        const { engine_id, model } = engine.info();
        return { reply, engineId: engine_id, model, engineMs: this.clock.monotonicMs() - startMs };
      } catch (error) {
        throw relay?.relayed ? brokenOff(error) : error;
      }
    });
  }

  countTokens(request: GenerateRequest, signal: AbortSignal): Promise<number> {
    return this.attempt(request, signal, (engine) => engine.countTokens(request, signal));
  }

  render(request: RenderRequest, signal: AbortSignal): Promise<Int32Array> {
    return this.attempt(request, signal, (engine) => engine.render(request, signal));
  }

  detokenize(ids: Int32Array, names: CallNames, signal: AbortSignal): Promise<string> {
    return this.attempt(names, signal, (engine) => engine.detokenize(ids, signal));
  }

  register(): Promise<EngineInfo> {
    return Promise.reject(new FloeError('unsupported', 'registering engines'));
  }

  deregister(): readonly string[] {
    throw new FloeError('unsupported', 'deregistering engines');
  }

  pause(): Promise<void> {
    return Promise.reject(new FloeError('unsupported', 'pausing'));
  }

  resume(): Promise<void> {
    return Promise.reject(new FloeError('unsupported', 'pausing'));
  }

  get paused(): PauseMode | null {
    return null;
  }

  setPolicyVersion(version: string): void {
    for (const member of this.members) member.engine.setPolicyVersion(version);
  }

  metrics(): Promise<string> {
    return Promise.resolve('');
  }

  async close(): Promise<void> {
    await Promise.all(this.members.map((member) => member.engine.close()));
  }

  private async attempt<T>(request: CallNames, signal: AbortSignal, call: (engine: Engine) => Promise<T>): Promise<T> {
    const giveUpMs = this.clock.monotonicMs() + PATIENCE_MS;
    const tried = new Set<Member>();
    let pauseMs = FIRST_PAUSE_MS;
    let lost = 0;
    for (;;) {
      const member = this.choose(request.sessionId, tried);
      if (member === null) throw new FloeError('engine_unavailable', 'no engine is registered');
      let failure: FloeError;
      try {
        const result = await call(member.engine);
        member.failures = 0;
        return result;
      } catch (error) {
        if (signal.aborted) throw signal.reason;
        this.countFailure(member, error);
        if (!FloeError.is(error) || error.code !== 'engine_unavailable') throw error;
        if (error.details.connection_lost === true && ++lost >= MAX_LOST_CONNECTIONS) throw error;
        failure = error;
      }
      tried.add(member);
      if (tried.size < this.members.length) continue;
      tried.clear();
      const waitMs = Math.max(pauseMs, retryAfterMs(failure));
      if (this.clock.monotonicMs() + waitMs > giveUpMs) throw failure;
      await sleep(this.clock, waitMs, signal);
      pauseMs = Math.min(pauseMs * 2, MAX_PAUSE_MS);
    }
  }

  /**
   * The least busy engine that was not tried yet; healthy ones first. Among equals the session's own (by hash), which is
   * likely to hold its prefix.
   */
  private choose(sessionId: string, tried: ReadonlySet<Member>): Member | null {
    const nowMs = this.clock.monotonicMs();
    const offset = this.members.length < 2 ? 0 : hashOf(sessionId) % this.members.length;
    let best: Member | null = null;
    let bestCost = Number.POSITIVE_INFINITY;
    for (let i = 0; i < this.members.length; i++) {
      const member = this.members[(i + offset) % this.members.length] as Member;
      if (tried.has(member)) continue;
      const avoided = member.avoidedUntilMs > nowMs ? Number.MAX_SAFE_INTEGER / 2 : 0;
      const cost = avoided + member.engine.info().inflight;
      if (cost < bestCost) {
        best = member;
        bestCost = cost;
      }
    }
    return best;
  }

  private countFailure(member: Member, error: unknown): void {
    if (!FloeError.is(error) || (error.code !== 'engine_unavailable' && error.code !== 'engine_error')) return;
    member.failures++;
    if (member.failures >= FAILURES_UNTIL_AVOIDED) member.avoidedUntilMs = this.clock.monotonicMs() + AVOIDED_MS;
  }
}

function hashOf(sessionId: string): number {
  return createHash('sha256').update(sessionId).digest().readUInt32LE(0);
}

function retryAfterMs(error: FloeError): number {
  const value = error.details.retry_after_ms;
  return typeof value === 'number' ? value : 0;
}

/** Knows whether a reply's beginning is out: another engine, asked again, would sample another reply. */
class WatchedListener implements ReplyListener {
  relayed = false;
  private readonly inner: ReplyListener;

  constructor(inner: ReplyListener) {
    this.inner = inner;
  }

  started(promptTokens: number | null): void {
    this.inner.started(promptTokens);
  }

  delta(delta: ReplyDelta): void {
    this.relayed = true;
    this.inner.delta(delta);
  }
}

/** What would be tried again, as something that is not. */
function brokenOff(error: unknown): unknown {
  if (!FloeError.is(error) || error.code !== 'engine_unavailable') return error;
  return new FloeError('engine_error', error.message, error.details, error);
}
