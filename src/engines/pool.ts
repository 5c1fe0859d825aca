import type { Clock } from '../core/clock.ts';
import type { FloeError } from '../core/errors.ts';
import type {
  CaptureMode,
  EngineInfo,
  EngineLocality,
  EngineMode,
  EnginePolicy,
  EngineSpec,
  PauseMode,
  TemplateFacts,
} from '../schema/index.ts';
import { createEngine } from './create.ts';
import type { CallNames, Engine, EngineNotice, GenerateReply, GenerateRequest, RenderRequest } from './engine.ts';
import { EnginePools } from './pool/engine-pools.ts';

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
 * picks. A call to which no reply began is tried again, elsewhere or after a pause, for up to a minute or until the
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
  /** Resolves when the pool has an engine; rejects with `engine_unavailable` when it stays empty for a minute, or the signal's reason. */
  ready(pool: string, signal: AbortSignal): Promise<void>;
  /** What every engine of the pool has room for; null when one does not tell. */
  maxModelLen(pool: string): number | null;
  generate(request: GenerateRequest, signal: AbortSignal): Promise<PooledReply>;
  /** Whether a call of the session waits for an engine's slot, for what its provider allows, or for the end of a pause. */
  awaitsTurn(sessionId: string): boolean;
  /** Why a call of the session still looks for an engine after one failed, or there was none; null: no call does. */
  failureOf(sessionId: string): FloeError | null;
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

export type EnginePoolDeps = {
  readonly clock: Clock;
  /** Where engines tell what their operator should know; default: nowhere. */
  readonly notice?: EngineNotice;
  /** How an engine is picked, in all pools; default: `least_in_flight`. */
  readonly policy?: EnginePolicy;
  /** Whether engines of this host come first while they have capacity; default: `none`. */
  readonly locality?: EngineLocality;
  /** A name or address of this host, beside those that it knows itself by. */
  readonly host?: string | null;
  /** How an engine is connected to, when it is registered and when it comes back; default: {@link createEngine}. */
  readonly connect?: (spec: EngineSpec) => Promise<Engine>;
};

/** Connects to every engine. Rejects as `register` does, with no engine left open. */
export async function createEnginePool(specs: readonly EngineSpec[], deps: EnginePoolDeps): Promise<EnginePool> {
  const pool = poolOf([], deps);
  const settled = await Promise.allSettled(specs.map((spec) => pool.register(spec)));
  const failed = settled.find((result) => result.status === 'rejected');
  if (failed === undefined) return pool;
  await pool.close();
  throw failed.reason;
}

/** A pool that begins with engines that exist already; it closes them when it is closed. Throws as `register` rejects. */
export function poolOf(engines: readonly Engine[], deps: EnginePoolDeps): EnginePool {
  const { clock, notice = () => {}, policy = 'least_in_flight', locality = 'none', host = null } = deps;
  const connect = deps.connect ?? ((spec) => createEngine(spec, { clock, notice }));
  return new EnginePools({ clock, notice, policy, locality, host, connect }, engines);
}
