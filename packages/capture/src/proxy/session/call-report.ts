import { type Clock, type FloeError, NO_SPAN, type Span } from '@floe-rl/core';
import type { Completion } from '../../tokens/completion.ts';
import type { CallObserver, CallParts } from './call.ts';
import type { AttemptSpec } from './engine-request.ts';

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
  parts: CallParts,
  completion: Completion | null,
  error: FloeError | null,
  span: Span,
): void {
  const failedEngine = error?.details.engine_id;
  const engineId = completion?.engineId ?? (typeof failedEngine === 'string' ? failedEngine : null);
  observer?.({
    dialect: parts.dialect.name,
    engineId,
    code: error?.code ?? 'ok',
    totalMs: clock.monotonicMs() - parts.arrivedMs,
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
