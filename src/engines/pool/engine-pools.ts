import type { FloeError } from '../../core/errors.ts';
import type { CaptureMode, EngineInfo, EngineMode, EngineSpec, PauseMode, TemplateFacts } from '../../schema/index.ts';
import type { CallContext, GenerateReply, GenerateRequest, RenderRequest } from '../engine.ts';

/** A reply, and the engine that sampled it. `engineMs` is the duration of the last call alone, the one that succeeded. */
export type PooledReply = {
  readonly reply: GenerateReply;
  readonly engineId: string;
  readonly model: string;
  readonly engineMs: number;
};

/** How the calls of a session are captured, and the template facts that hold for every engine of its pool. */
export type PoolMode = { readonly mode: CaptureMode; readonly template: TemplateFacts };

export type PauseOptions = {
  readonly mode: PauseMode;
  /**
   * What happens to new calls during the pause: `hold` makes them wait, `reject` makes them fail with `overloaded` (`details.paused`,
   * `details.retry_after_ms`).
   */
  readonly whilePaused: 'hold' | 'reject';
};

/**
 * The engines of this process, in named pools; the engines of one pool serve one policy. The pool's choice policy picks the engine
 * of a call. A call to which no reply has begun is retried, on another engine or after a pause, for up to a minute or until its
 * signal aborts; a call whose listener has received a delta is never retried. A reply that a weight update interrupted is resumed
 * from its last token, if an engine of the pool accepts token ids.
 * `generate`, `countTokens`, `render` and `detokenize` reject as an `Engine` does, and with `engine_unavailable` when the pool has no engine.
 */
export interface EnginePools {
  info(): EngineInfo[];
  /**
   * Determines the capture mode for a session that requests `requested`; it is `text` when the engines report no token ids. Throws
   * `unsupported` when `tokens` is requested and an engine of the pool does not support it, and `engine_unavailable` when the pool is
   * empty.
   */
  modeOf(pool: string, requested: EngineMode): PoolMode;
  /**
   * Resolves when the pool has an engine. Rejects with `engine_unavailable` when the pool stays empty for a minute, or with the signal's
   * reason.
   */
  ready(pool: string, signal: AbortSignal): Promise<void>;
  /** Returns the context length, in tokens, that every engine of the pool supports; `null` when an engine does not report its own. */
  maxModelLen(pool: string): number | null;
  generate(request: GenerateRequest, signal: AbortSignal): Promise<PooledReply>;
  /** Whether a call of the session waits for a free slot, for its provider's rate limit, or for the end of a pause. */
  isWaiting(sessionId: string): boolean;
  /**
   * Returns the last failure of a call of this session that has failed on every engine so far and is being retried; `null` when there is
   * no such call.
   */
  failureOf(sessionId: string): FloeError | null;
  countTokens(request: GenerateRequest, signal: AbortSignal): Promise<number>;
  render(request: RenderRequest, signal: AbortSignal): Promise<Int32Array>;
  detokenize(ids: Int32Array, context: CallContext, signal: AbortSignal): Promise<string>;
  /**
   * Connects to one more engine and adds it to its pool. Rejects as `createEngine` does, with `conflict` when the id is registered with
   * another specification, and with `engine_error` when its tokenizer or template differs from that of its pool. Registering the same
   * specification twice adds one engine.
   */
  register(spec: EngineSpec): Promise<EngineInfo>;
  /**
   * Removes the engine with this id, or all engines when the id is `null`. No new call reaches them after this returns. Calls in flight
   * run to their end, unless `abort` is set, which aborts them immediately. Returns the ids of the removed engines.
   */
  deregister(engineId: string | null, options?: { readonly abort?: boolean }): readonly string[];
  /** Holds or rejects new calls from now on. Resolves when every engine that supports pausing has confirmed the pause. */
  pause(options: PauseOptions): Promise<void>;
  resume(): Promise<void>;
  /** The mode of the pause in effect; `null` when calls are admitted. */
  readonly paused: PauseMode | null;
  /**
   * Sets the version of the current weights, which is recorded for engines that do not report a version themselves and is part of the
   * prefix cache's salt.
   */
  setPolicyVersion(version: string): void;
  /** Returns the metrics of all engines in Prometheus text, labelled with engine and pool. Engines that do not answer are left out. */
  metrics(): Promise<string>;
  /** Closes the connections to all engines. May be called twice. */
  close(): Promise<void>;
}
