import { type Clock, type ErrorCode, type FloeError, NO_SPAN, type Span } from '@floe-rl/core';
import type { DialectName } from '@floe-rl/core/schema';
import type { Completion } from '../../tokens/completion.ts';
import type { AdmittedParts, CallParts } from './call.ts';
import type { AttemptSpec } from './engine-request.ts';

/** A model call that has ended, or that was refused before it began. */
export type EndedCall = {
  readonly dialect: DialectName;
  /** Id of the engine that answered or failed; `null` when no engine is known. */
  readonly engineId: string | null;
  readonly code: 'ok' | ErrorCode;
  /**
   * Milliseconds from the receipt of the request's body until the reply, or the failure, could be sent. For a call that was refused before
   * it began, they count from the arrival of the request.
   */
  readonly totalMs: number;
  /** The part of {@link totalMs} that the engine took for its reply; `null` when there is no reply. */
  readonly engineMs: number | null;
};

/**
 * Called once for every model call that has ended, even when several requests waited for the call. Must not throw, and must be fast because
 * replies wait for it.
 */
export type CallObserver = (call: EndedCall) => void;

/** Starts the tracing span of a model call, which engines of `pool` answer. */
export function spanOf(
  spec: AttemptSpec & { readonly span?: Span },
  { completionId, dialect, request }: CallParts,
  pool: string,
): Span {
  const { sessionId, attempt, span = NO_SPAN } = spec;
  const call = { completion_id: completionId, dialect: dialect.name, call_kind: request.callKind, pool };
  return span.child('model_call', { session_id: sessionId, attempt, ...call }, 'client');
}

/**
 * Reports to the observer how a call ended, and ends the call's tracing span. `completion` is `null` for a failed call, and `error` for an
 * answered one.
 */
export function reportEnd(
  { clock, observer }: { readonly clock: Clock; readonly observer?: CallObserver | undefined },
  { dialect, arrivedMs, span }: AdmittedParts,
  completion: Completion | null,
  error: FloeError | null,
): void {
  const failedEngine = error?.details.engine_id;
  const engineId = completion?.engineId ?? (typeof failedEngine === 'string' ? failedEngine : null);
  observer?.({
    dialect: dialect.name,
    engineId,
    code: error?.code ?? 'ok',
    totalMs: clock.monotonicMs() - arrivedMs,
    engineMs: completion?.engineMs ?? null,
  });
  if (completion !== null) {
    span.set({
      finish_reason: completion.finishReason,
      prompt_tokens: completion.promptIds.length,
      sampled_tokens: completion.responseIds.length,
      policy_version: completion.versionSpans.at(-1)?.version ?? null,
    });
  }
  span.set({ engine: engineId });
  span.end(error?.message);
}
