import type { CallKind, Capture } from '@floe-rl/core/schema';
import type { PooledReply } from '../../engines/pool/engine-pools.ts';
import type { Completion, CompletionRequest } from '../../tokens/completion.ts';
import { withCallIds } from '../prompt/call-ids.ts';
import type { CallParts } from './call.ts';
import type { AttemptSpec } from './engine-request.ts';

const TRAINABLE_KINDS: readonly CallKind[] = ['main', 'subagent', 'compaction'];

/** Whether a call of this kind does not belong to the agents' work, such as a call for a title. Auxiliary calls are not trained by default. */
export function isAuxiliary(callKind: CallKind): boolean {
  return !TRAINABLE_KINDS.includes(callKind);
}

/**
 * Creates the recorded completion of a call that an engine answered. `promptIds` are the token ids of its prompt; the completion keeps this
 * array without a copy.
 */
export function completionOf(
  { sessionId, attempt }: Pick<AttemptSpec, 'sessionId' | 'attempt'>,
  parts: CallParts,
  request: CompletionRequest,
  { reply, engineId, model, engineMs }: PooledReply,
  capture: Capture,
  promptIds: Int32Array,
  totalMs: number,
): Completion {
  // Whether the engine aborted the reply. No harness receives an aborted reply, but its tokens were sampled and are recorded.
  const isAborted = reply.finishReason === 'abort';
  return {
    completionId: parts.completionId,
    sessionId,
    attempt,
    index: parts.index,
    timestampMs: parts.timestampMs,
    dialect: parts.dialect.name,
    callKind: parts.request.callKind,
    thread: parts.request.thread,
    request,
    capture,
    promptIds,
    responseIds: reply.responseIds,
    responseLogprobs: reply.responseLogprobs,
    versionSpans: reply.versionSpans,
    routedExperts: reply.routedExperts,
    message: withCallIds(reply.message, parts.completionId),
    engineCallIds: (reply.message.tool_calls ?? []).map(({ id }) => id),
    finishReason: reply.finishReason,
    stop: reply.stop,
    engineId,
    model,
    usage: reply.usage,
    engineMs,
    totalMs,
    abandoned: isAborted,
    auxiliary: isAuxiliary(parts.request.callKind),
    undelivered: isAborted,
  };
}
