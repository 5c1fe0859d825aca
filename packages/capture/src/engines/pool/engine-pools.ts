import type { FloeError } from '@floe-rl/core';
import type { CaptureMode, EngineInfo, EngineMode, EngineSpec, PauseMode, TemplateFacts } from '@floe-rl/core/schema';
import type { CallContext, GenerateReply, GenerateRequest, RenderRequest } from '../engine.ts';

/** A reply and the engine that sampled it. `engineMs` is the duration in milliseconds of the call that succeeded, without earlier tries. */
export type PooledReply = {
  readonly reply: GenerateReply;
  readonly engineId: string;
  readonly model: string;
  readonly engineMs: number;
};

/** How a session's model calls are captured, and the chat template properties that hold for every engine of its pool. */
export type PoolMode = { readonly mode: CaptureMode; readonly template: TemplateFacts };

export type PauseOptions = {
  readonly mode: PauseMode;
  /**
   * How the pause treats new calls: `hold` makes them wait, `reject` makes them fail with `overloaded` (`details.paused`,
   * `details.retry_after_ms`).
   */
  readonly whilePaused: 'hold' | 'reject';
};

/** An engine that a pause does not stop. `message` states the reason and how many replies of this process are running on the engine. */
export type UnpausedEngine = { readonly engineId: string; readonly message: string };

/**
 * The engines of this process, in named pools; the engines of one pool serve one policy. The pool's choice policy picks the engine of a
 * call. A call to which no reply has begun is retried, on another engine or after a wait, for up to a minute or until its signal aborts. A
 * call is never retried once its listener has received a delta. A reply that a weight update interrupted is resumed from its last token, if
 * an engine of the pool accepts token ids. `generate`, `countTokens`, `render` and `detokenize` reject as an `Engine` does, and with
 * `engine_unavailable` when the pool has no engine.
 */
export interface EnginePools {
  info(): EngineInfo[];
  /**
   * Determines the capture mode for a session that requests `requested`: `tokens` (prompts are sent as token ids), `chat` (the engine
   * renders messages and reports token ids) or `text` (the engines report no token ids). Throws `unsupported` when `tokens` is requested
   * and an engine of the pool does not support it, and `engine_unavailable` when the pool is empty.
   */
  modeOf(pool: string, requested: EngineMode): PoolMode;
  /**
   * Resolves with what {@link modeOf} returns, once the pool of the call has an engine. Rejects with `engine_unavailable` when the pool stays empty
   * for a minute, and with the signal's reason. Otherwise rejects as {@link modeOf} does.
   */
  modeWhenReady(call: CallContext, requested: EngineMode, signal: AbortSignal): Promise<PoolMode>;
  /** Returns the context length, in tokens, that every engine of the pool supports; `null` when an engine does not report its own. */
  maxModelLen(pool: string): number | null;
  generate(request: GenerateRequest, signal: AbortSignal): Promise<PooledReply>;
  /** Whether a call of the session waits for a free slot, for its provider's rate limit, or for the end of a pause. */
  isWaiting(sessionId: string): boolean;
  /**
   * Returns the last failure of the call with this completion id while the call is being retried or waits for an engine to be registered;
   * `null` when there is no such call.
   */
  failureOf(completionId: string): FloeError | null;
  countTokens(request: GenerateRequest, signal: AbortSignal): Promise<number>;
  render(request: RenderRequest, signal: AbortSignal): Promise<Int32Array>;
  detokenize(ids: Int32Array, context: CallContext, signal: AbortSignal): Promise<string>;
  /**
   * Connects to an engine and adds it to its pool. Registering the same specification twice adds one engine. Rejects with the errors of
   * `createEngine`. Also rejects with `conflict` when the id is registered with another specification, and with `engine_error` when the
   * tokenizer or template of the engine differs from the pool's.
   */
  register(spec: EngineSpec): Promise<EngineInfo>;
  /**
   * Removes the engine with this id, or all engines when the id is `null`. The removed engines get no new calls once this method has
   * returned. Calls in flight run to their end, unless `abort` is set, which aborts them immediately. Returns the ids of the removed
   * engines.
   */
  deregister(engineId: string | null, options?: { readonly abort?: boolean }): readonly string[];
  /**
   * Pauses all engines: holds or rejects new calls immediately, and resolves when every engine that supports pausing has confirmed the
   * pause.
   */
  pause(options: PauseOptions): Promise<void>;
  resume(): Promise<void>;
  /** The mode of the pause in effect; `null` when calls are admitted. */
  readonly paused: PauseMode | null;
  /**
   * The engines that the pause in effect does not stop: engines that refused it, and engines that cannot be paused while replies of this
   * process are running on them. Empty when there is no pause.
   */
  readonly unpaused: readonly UnpausedEngine[];
  /**
   * Sets the policy version of the current weights. It is recorded for engines that do not report a version themselves, and is the salt of
   * their prefix caches. Replies that are running on such an engine are recorded without a version.
   */
  setPolicyVersion(version: string): void;
  /** Returns the metrics of all engines in Prometheus text, labelled with engine and pool. Engines that do not answer are left out. */
  metrics(): Promise<string>;
  /** Closes the connections to all engines. May be called twice. */
  close(): Promise<void>;
}
