import { type Clock, sleep } from '../../core/clock.ts';
import { asFloeError, FloeError } from '../../core/errors.ts';
import type { EngineNotice, GenerateRequest, PromptIds } from '../engine.ts';
import type { PooledReply } from '../pool.ts';
import { RelayedReply } from './relayed.ts';

/**
 * How often in a row a reply may be broken off without one more token. Who aborts everything before an update often does so
 * several times, some seconds apart; with the pauses this outlasts it by far.
 */
const MAX_IDLE = 8;
/** First pause after an idle attempt; doubles up to {@link MAX_PAUSE_MS}. */
const FIRST_PAUSE_MS = 100;
const MAX_PAUSE_MS = 5_000;

export type ContinuationDeps = {
  readonly clock: Clock;
  readonly notice: EngineNotice;
  /**
   * Samples once, at an engine that takes ids when the request has some. `admitted`: has been past the gate before. Never tries a
   * call again of which `relay` has heard.
   */
  readonly sample: (request: GenerateRequest, relay: RelayedReply | undefined, admitted: boolean) => Promise<Sampled>;
  readonly takesIds: (pool: string) => boolean;
};

/** A reply, and the engine that gave it: what it has room for, and its tokenizer and template. */
export type Sampled = PooledReply & { readonly maxModelLen: number | null; readonly fingerprint: string | null };

/**
 * Samples one reply to its end. What an update broke off is sampled on from there, by any engine of the pool that takes ids;
 * the reply's version spans then cover both weights. Where that cannot be done the part that there is comes back, with finish reason `abort`.
 * Rejects as `EnginePool.generate` does, with `engine_error` also when the end of a reply contradicts its beginning.
 */
export async function generateWhole(
  deps: ContinuationDeps,
  request: GenerateRequest,
  signal: AbortSignal,
): Promise<PooledReply> {
  const relay = request.listener && new RelayedReply(request.listener);
  let asked: GenerateRequest = request;
  let answer = await deps.sample(asked, relay, false);
  let idle = 0;
  while (answer.reply.finishReason === 'abort' && !signal.aborted) {
    const { reply } = answer;
    if (isFull(request, answer)) return { ...answer, reply: { ...reply, finishReason: 'length', stop: null } };
    const prompt = promptOf(request, answer);
    if (prompt === null || !deps.takesIds(request.pool)) return answer;
    idle = reply.responseIds.length > (asked.begun?.responseIds.length ?? 0) ? 0 : idle + 1;
    if (idle > MAX_IDLE) return answer;
    if (idle > 0) await sleep(deps.clock, Math.min(FIRST_PAUSE_MS * 2 ** (idle - 1), MAX_PAUSE_MS), signal);
    // A reply that has not begun is simply sampled again, and may still be heard of as it comes.
    if (reply.responseIds.length > 0) asked = { ...request, prompt, begun: reply };
    const next = await nextPart(deps, asked, asked.begun === null ? relay : undefined, signal);
    if (next === null) return answer;
    answer = checked(next, asked, relay);
  }
  return answer;
}

/** Null: it could not be sampled on. What there is must not be lost for that: it was sampled and has to be accounted for. */
async function nextPart(
  deps: ContinuationDeps,
  request: GenerateRequest,
  relay: RelayedReply | undefined,
  signal: AbortSignal,
): Promise<Sampled | null> {
  try {
    return await deps.sample(request, relay, true);
  } catch (error) {
    if (signal.aborted) throw signal.reason;
    deps.notice('a reply that an update broke off could not be continued', {
      completion_id: request.completionId,
      reason: asFloeError(error).message,
    });
    return null;
  }
}

function checked(answer: Sampled, asked: GenerateRequest, relay: RelayedReply | undefined): Sampled {
  const { reply, engineId } = answer;
  if (asked.begun !== null && !beginsWith(reply.responseIds, asked.begun.responseIds)) {
    throw new FloeError(
      'engine_error',
      `engine ${engineId}: the continued reply does not begin with what was sampled`,
      {
        engine_id: engineId,
      },
    );
  }
  // A part that is still cut may be read otherwise than its whole.
  if (relay === undefined || reply.finishReason === 'abort') return answer;
  return { ...answer, reply: { ...reply, message: relay.completedBy(reply.message, engineId) } };
}

function beginsWith(ids: Int32Array, beginning: Int32Array): boolean {
  return ids.length >= beginning.length && beginning.every((id, i) => ids[i] === id);
}

/** Whether there is no room for another token. */
function isFull({ maxTokens }: GenerateRequest, { reply, maxModelLen }: Sampled): boolean {
  const sampled = reply.responseIds.length;
  if (maxTokens !== null && sampled >= maxTokens) return true;
  return maxModelLen !== null && sampled > 0 && reply.promptIds.length + sampled >= maxModelLen;
}

/** Null: the prompt cannot be given as ids. */
function promptOf(request: GenerateRequest, { reply, fingerprint }: Sampled): PromptIds | null {
  if (request.prompt !== null) return request.prompt;
  if (reply.promptIds.length === 0 || request.messageTexts.some(hasImage)) return null;
  return { ids: reply.promptIds, json: Buffer.from(reply.promptIds.join(',')), fingerprint };
}

/** Ids alone do not bring a picture. In JSON text an unescaped quote behind a bracket or comma begins a key. */
function hasImage(messageText: string): boolean {
  return /[{,]\s*"image_url"\s*:/.test(messageText);
}
