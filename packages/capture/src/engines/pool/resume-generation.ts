import { asFloeError, backoffMs, type Clock, FloeError, sleep } from '@floe-rl/core';
import { hasImage } from '../chat/messages.ts';
import { firstTokens } from '../chat/reply-tokens.ts';
import { cutAtStop, type SeamStop, stopAcrossSeam } from '../chat/stop-strings.ts';
import { constraintKindOf } from '../constraint.ts';
import type { EngineNotice, GenerateRequest, PromptIds } from '../engine.ts';
import type { PooledReply } from './engine-pools.ts';
import type { RelayedReply } from './relayed-reply.ts';

/**
 * A reply is resumed until this many consecutive tries have sampled no new token. A trainer that aborts all requests before a weight update
 * often does so several times within some seconds; eight tries and the pauses between them last longer than these aborts.
 */
const MAX_TRIES_WITHOUT_PROGRESS = 8;
/** Back-off before a reply is resumed once more after a try that sampled no token. */
const NO_PROGRESS_BACKOFF = { baseMs: 100, maxMs: 5_000 };

/** A reply together with the properties of the engine that sampled it. */
export type SampledReply = PooledReply & {
  /** The engine's context length in tokens; `null` when the engine does not report it. */
  readonly maxModelLen: number | null;
  /** Fingerprint of the engine's tokenizer and chat template; `null` when unknown. */
  readonly fingerprint: string | null;
};

type ResumeDeps = {
  readonly clock: Clock;
  readonly notice: EngineNotice;
  /**
   * Sends one sampling call. A request with a prompt of token ids goes to an engine that accepts it. With `admitted`, the call waits for
   * the end of a pause even when the pause rejects new calls. A call is not retried once `relay` has received a delta.
   */
  readonly sample: (
    request: GenerateRequest,
    relay: RelayedReply | undefined,
    admitted: boolean,
  ) => Promise<SampledReply>;
  readonly acceptsIds: (pool: string) => boolean;
  /** Decodes ids, special tokens included, on an engine of the pool. */
  readonly decode: (ids: Int32Array) => Promise<string>;
};

/**
 * Resumes `interrupted`, a reply with finish reason `abort`, from its last token until it is complete, on any engine of the pool that
 * accepts token ids. The version spans of the result then cover the old and the new weights. A stop string that begins before the
 * interruption and ends after it ends the reply, as it would in a single call. A reply under a constraint is sampled again from its start
 * instead, because an engine's grammar would restart at the first new token. When the reply cannot be completed, the partial reply is
 * returned with finish reason `abort`. Rejects as `EnginePools.generate` does, and with `engine_error` when the resumed reply contradicts
 * its beginning.
 */
export async function resumeGeneration(
  deps: ResumeDeps,
  request: GenerateRequest,
  interrupted: SampledReply,
  relay: RelayedReply | undefined,
  signal: AbortSignal,
): Promise<PooledReply> {
  let next: GenerateRequest = request;
  let current = interrupted;
  let triesWithoutProgress = 0;
  const isConstrained = constraintKindOf(request) !== null;
  while (current.reply.finishReason === 'abort' && !signal.aborted) {
    const { reply } = current;
    if (isFull(request, current)) return { ...current, reply: { ...reply, finishReason: 'length', stop: null } };
    const prompt = isConstrained ? null : promptOf(request, current);
    if (!isConstrained && (prompt === null || !deps.acceptsIds(request.pool))) return current;
    const hasProgress = !isConstrained && reply.responseIds.length > (next.resumeFrom?.responseIds.length ?? 0);
    triesWithoutProgress = hasProgress ? 0 : triesWithoutProgress + 1;
    if (triesWithoutProgress > MAX_TRIES_WITHOUT_PROGRESS) return current;
    if (triesWithoutProgress > 0) {
      await sleep(deps.clock, backoffMs(NO_PROGRESS_BACKOFF, triesWithoutProgress), signal);
    }
    if (isConstrained) noticeRestart(deps, current, request);
    // A reply that has no tokens yet is sampled from its start, so its deltas may still be forwarded to the listener.
    else if (reply.responseIds.length > 0) next = { ...request, prompt, resumeFrom: reply };
    const resumed = await sampleRest(deps, next, next.resumeFrom === null ? relay : undefined, signal);
    const ended = resumed && (await endedAtStop(deps, next, resumed, signal));
    if (ended === null) return current;
    current = verified(ended, next, relay);
  }
  return current;
}

function noticeRestart({ notice }: ResumeDeps, { reply, engineId }: SampledReply, request: GenerateRequest): void {
  notice('a weight update interrupted a reply under a constraint; it is sampled again from its start', {
    completion_id: request.completionId,
    engine_id: engineId,
    discarded_tokens: reply.responseIds.length,
  });
}

/**
 * Ends a resumed reply at the stop string that begins before the interruption and ends after it, if there is one. The tokens after the stop
 * string are dropped, because a single call would not have sampled them. Resolves with `null` when the search for the stop string fails, or
 * when the message of the shorter reply cannot be read.
 */
async function endedAtStop(
  deps: ResumeDeps,
  request: GenerateRequest,
  resumed: SampledReply,
  signal: AbortSignal,
): Promise<SampledReply | null> {
  const { reply } = resumed;
  const seam = request.resumeFrom?.responseIds.length ?? 0;
  const search = (): Promise<SeamStop | null> => stopAcrossSeam(reply.responseIds, seam, request.stop, deps.decode);
  const searched = await orNull(search, deps, request, signal);
  if (searched === null) return null;
  const found = searched.value;
  if (found === null) return resumed;
  const { stop, count } = found;
  // `resumeFrom` already has as many tokens as `maxTokens` allows, so the engine only parses the message.
  const resumeFrom = firstTokens(reply, count, reply.promptIds.length);
  const parsed = await sampleRest(deps, { ...request, resumeFrom, maxTokens: count }, undefined, signal);
  if (parsed === null) return null;
  const message = cutAtStop(parsed.reply.message, [stop])?.message ?? parsed.reply.message;
  const finishReason = (message.tool_calls ?? []).length > 0 ? 'tool_calls' : 'stop';
  return { ...parsed, reply: { ...parsed.reply, message, finishReason, stop: { kind: 'string', text: stop } } };
}

/**
 * Samples the rest of a reply. Returns `null` when that fails, instead of rejecting, because the tokens sampled so far must still be
 * recorded.
 */
async function sampleRest(
  deps: ResumeDeps,
  request: GenerateRequest,
  relay: RelayedReply | undefined,
  signal: AbortSignal,
): Promise<SampledReply | null> {
  return (await orNull(() => deps.sample(request, relay, true), deps, request, signal))?.value ?? null;
}

/** Runs one step of resuming a reply. Resolves with `null`, after a notice, when the step fails. */
async function orNull<T>(
  step: () => Promise<T>,
  { notice }: ResumeDeps,
  { completionId }: GenerateRequest,
  signal: AbortSignal,
): Promise<{ readonly value: T } | null> {
  try {
    return { value: await step() };
  } catch (error) {
    if (signal.aborted) throw signal.reason;
    notice('a reply that a weight update interrupted could not be resumed; its partial result is returned', {
      completion_id: completionId,
      reason: asFloeError(error).message,
    });
    return null;
  }
}

function verified(sampled: SampledReply, request: GenerateRequest, relay: RelayedReply | undefined): SampledReply {
  const { reply, engineId } = sampled;
  if (request.resumeFrom !== null && !startsWith(reply.responseIds, request.resumeFrom.responseIds)) {
    const message = `engine ${engineId}: the resumed reply does not begin with the tokens that were sampled`;
    throw new FloeError('engine_error', message, { engine_id: engineId });
  }
  // The message of an incomplete reply is not checked, because the engine may parse it differently when the reply is complete.
  if (relay === undefined || reply.finishReason === 'abort') return sampled;
  return { ...sampled, reply: { ...reply, message: relay.completedBy(reply.message, engineId) } };
}

function startsWith(ids: Int32Array, beginning: Int32Array): boolean {
  return ids.length >= beginning.length && beginning.every((id, i) => ids[i] === id);
}

/**
 * Whether the reply has reached the token limit of the request or the engine's context length, so that no further token can be sampled.
 */
function isFull({ maxTokens }: GenerateRequest, { reply, maxModelLen }: SampledReply): boolean {
  const sampled = reply.responseIds.length;
  if (maxTokens !== null && sampled >= maxTokens) return true;
  return maxModelLen !== null && sampled > 0 && reply.promptIds.length + sampled >= maxModelLen;
}

/** Returns the prompt as token ids; `null` when token ids cannot express it, as with images. */
function promptOf(request: GenerateRequest, { reply, fingerprint }: SampledReply): PromptIds | null {
  if (request.prompt !== null) return request.prompt;
  if (reply.promptIds.length === 0 || request.messageTexts.some(hasImage)) return null;
  return { ids: reply.promptIds, json: Buffer.from(reply.promptIds.join(',')), fingerprint };
}
