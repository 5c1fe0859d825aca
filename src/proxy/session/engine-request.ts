import { createHash } from 'node:crypto';
import { FloeError } from '../../core/errors.ts';
import { threadKeyOf } from '../../dialects/call-kinds/label.ts';
import type { CallContext, CanonicalRequest, Dialect } from '../../dialects/dialect.ts';
import type { GenerateRequest, PromptIds } from '../../engines/engine.ts';
import type { PooledReply } from '../../engines/pool.ts';
import type { CallKind, Capture, Sampling, TaskEngine } from '../../schema/index.ts';
import type { Completion, CompletionRequest } from '../../tokens/completion.ts';
import { withOwnCallIds } from '../prompt/call-ids.ts';
import type { CallParts } from './call.ts';

/** Largest `num_samples` of a task: seeds of different calls never coincide with those of another sample. */
const SEED_STRIDE = 100_000;

/** Engines look for every one of them behind each token, for all of their calls in turn. No API that is spoken here takes as many. */
const MAX_STOPS = 64;

/** Of what a request asks for beside its prompt, as JSON: a schema, mostly. No context bounds it, and it is kept with each completion. */
const MAX_WISHES_CHARS = 512 * 1024;

const TRAINABLE_KINDS: readonly CallKind[] = ['main', 'subagent', 'compaction'];

/** The attempt that a call belongs to. */
export type Attempt = {
  readonly sessionId: string;
  readonly attempt: number;
  readonly sampleIndex: number;
  readonly sampling: Sampling;
  readonly engine: TaskEngine;
};

/** Throws `schema_violation` for wishes that would cost others more than they are worth. */
export function refuseCostlyWishes({ samplingAsked }: CanonicalRequest): void {
  const stops = samplingAsked.stop?.length ?? 0;
  if (stops > MAX_STOPS) throw new FloeError('schema_violation', `${stops} stop strings: there may be ${MAX_STOPS}`);
  const chars = JSON.stringify(samplingAsked).length;
  if (chars > MAX_WISHES_CHARS) {
    const what = 'stop strings and response format';
    throw new FloeError('schema_violation', `${what} take ${chars} characters: there may be ${MAX_WISHES_CHARS}`);
  }
}

/** What makes two requests the same: dialect, agent thread, what the path says, and body, byte for byte. */
export function digestOf(dialect: Dialect, context: CallContext, body: Buffer): string {
  const { headers, query, model, stream } = context;
  const outside = JSON.stringify([dialect.name, threadKeyOf(headers), model, stream, query.get('alt')]);
  return createHash('sha256').update(outside).update(body).digest('base64');
}

/**
 * What is in effect for the call `index`: the task's sampling, whatever the harness asks for; of the two bounds the lower one; and a
 * seed of its own for every call: `seed + sample_index` for the first, further apart than there are samples from then on.
 */
export function samplingOf({ sampling, sampleIndex }: Attempt, request: CanonicalRequest, index: number): Sampling {
  const asked = request.samplingAsked.max_tokens ?? null;
  const maxTokens =
    asked === null || sampling.max_tokens === null
      ? (asked ?? sampling.max_tokens)
      : Math.min(asked, sampling.max_tokens);
  const seed = sampling.seed === null ? null : sampling.seed + sampleIndex + index * SEED_STRIDE;
  return { ...sampling, max_tokens: maxTokens, seed };
}

/** The request as an engine takes it; `prompt`: null: it renders `messageTexts`. */
export function engineRequestOf(
  completionId: string,
  { sessionId, engine }: Attempt,
  request: CanonicalRequest,
  recorded: CompletionRequest,
  messageTexts: readonly string[],
  prompt: PromptIds | null,
): GenerateRequest {
  return {
    completionId,
    sessionId,
    pool: engine.pool,
    messageTexts,
    tools: recorded.tools,
    toolsText: recorded.toolsText,
    toolChoice: request.toolChoice,
    parallelToolCalls: request.parallelToolCalls,
    sampling: recorded.sampling,
    maxTokens: recorded.sampling.max_tokens,
    stop: request.samplingAsked.stop ?? [],
    responseFormat: request.samplingAsked.response_format ?? null,
    seed: recorded.sampling.seed,
    prompt,
    begun: null,
    cacheSalt: null,
  };
}

/** The record of a call that the engine answered. `promptIds` are the reply's, as they are to be kept. */
export function completionOf(
  { sessionId, attempt }: Attempt,
  parts: CallParts,
  request: CompletionRequest,
  { reply, engineId, model, engineMs }: PooledReply,
  capture: Capture,
  promptIds: Int32Array,
  totalMs: number,
): Completion {
  // A reply that the engine broke off is what the policy sampled, but no harness gets to use it.
  const brokenOff = reply.finishReason === 'abort';
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
    message: withOwnCallIds(reply.message, parts.completionId),
    engineCallIds: (reply.message.tool_calls ?? []).map(({ id }) => id),
    finishReason: reply.finishReason,
    stop: reply.stop,
    engineId,
    model,
    usage: reply.usage,
    engineMs,
    totalMs,
    abandoned: brokenOff,
    auxiliary: !TRAINABLE_KINDS.includes(parts.request.callKind),
    undelivered: brokenOff,
  };
}
