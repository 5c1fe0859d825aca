import { backoffMs } from '../../core/backoff.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import { asFloeError, FloeError } from '../../core/errors.ts';
import type { ReplyDelta } from '../../core/reply.ts';
import type { AssistantMessage, ToolCall } from '../../schema/index.ts';
import { hasImage } from '../chat/messages.ts';
import type { EngineNotice, GenerateRequest, PromptIds, ReplyListener } from '../engine.ts';
import type { PooledReply } from './engine-pools.ts';

/**
 * Maximum number of consecutive interruptions of a reply without a new token. A trainer that aborts all requests before an update often
 * does so several times within some seconds; this many tries and the pauses between them last longer than that.
 */
const MAX_TRIES_WITHOUT_PROGRESS = 8;
/** Pauses before a reply is resumed after a try that sampled no token. */
const NO_PROGRESS_BACKOFF = { baseMs: 100, maxMs: 5_000 };

/** A reply together with the properties of the engine that sampled it. */
export type SampledReply = PooledReply & {
  /** The engine's context length in tokens; `null` when the engine does not report it. */
  readonly maxModelLen: number | null;
  /** Fingerprint of the engine's tokenizer and template; `null` when unknown. */
  readonly fingerprint: string | null;
};

type ResumeDeps = {
  readonly clock: Clock;
  readonly notice: EngineNotice;
  /**
   * Sends one sampling call, to an engine that accepts token ids when the request has a prompt of ids. `admitted` states whether the
   * call has passed the pause gate before. A call is not retried once `relay` has received a delta.
   */
  readonly sample: (
    request: GenerateRequest,
    relay: RelayedReply | undefined,
    admitted: boolean,
  ) => Promise<SampledReply>;
  readonly acceptsIds: (pool: string) => boolean;
};

/**
 * Resumes `interrupted`, a reply with finish reason `abort`, from its last token until it is complete, on any engine of the pool that
 * accepts token ids. Its version spans then cover the old and the new weights. Where resuming is impossible, the partial reply is
 * returned with finish reason `abort`. Rejects as `EnginePools.generate` does, and with `engine_error` when the resumed reply
 * contradicts its beginning.
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
  while (current.reply.finishReason === 'abort' && !signal.aborted) {
    const { reply } = current;
    if (isFull(request, current)) return { ...current, reply: { ...reply, finishReason: 'length', stop: null } };
    const prompt = promptOf(request, current);
    if (prompt === null || !deps.acceptsIds(request.pool)) return current;
    const hasProgress = reply.responseIds.length > (next.resumeFrom?.responseIds.length ?? 0);
    triesWithoutProgress = hasProgress ? 0 : triesWithoutProgress + 1;
    if (triesWithoutProgress > MAX_TRIES_WITHOUT_PROGRESS) return current;
    if (triesWithoutProgress > 0) {
      await sleep(deps.clock, backoffMs(NO_PROGRESS_BACKOFF, triesWithoutProgress), signal);
    }
    // A reply without tokens is sampled from its start, so its deltas may still be relayed.
    if (reply.responseIds.length > 0) next = { ...request, prompt, resumeFrom: reply };
    const resumed = await sampleRest(deps, next, next.resumeFrom === null ? relay : undefined, signal);
    if (resumed === null) return current;
    current = verified(resumed, next, relay);
  }
  return current;
}

/**
 * Samples the rest of a reply. Returns `null` when that fails, instead of rejecting, because the tokens sampled so far must be accounted
 * for.
 */
async function sampleRest(
  deps: ResumeDeps,
  request: GenerateRequest,
  relay: RelayedReply | undefined,
  signal: AbortSignal,
): Promise<SampledReply | null> {
  try {
    return await deps.sample(request, relay, true);
  } catch (error) {
    if (signal.aborted) throw signal.reason;
    deps.notice('a reply that a weight update interrupted could not be resumed; its partial result is returned', {
      completion_id: request.completionId,
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
  // While the reply is incomplete, its message is not checked: the engine may parse it differently when the reply is complete.
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

/** Returns the prompt as ids; `null` when ids cannot express it, as with images. */
function promptOf(request: GenerateRequest, { reply, fingerprint }: SampledReply): PromptIds | null {
  if (request.prompt !== null) return request.prompt;
  if (reply.promptIds.length === 0 || request.messageTexts.some(hasImage)) return null;
  return { ids: reply.promptIds, json: Buffer.from(reply.promptIds.join(',')), fingerprint };
}

type RelayedCall = { readonly id: string; readonly name: string; arguments: string };

/**
 * Forwards a reply's deltas and remembers them. Once a delta has been forwarded, the call cannot be retried, because another engine
 * would sample a different reply to the same request.
 */
export class RelayedReply implements ReplyListener {
  private readonly inner: ReplyListener;
  private hasStarted = false;
  private hasDeltas = false;
  private reasoning = '';
  private text = '';
  private readonly calls = new Map<number, RelayedCall>();

  constructor(inner: ReplyListener) {
    this.inner = inner;
  }

  started(promptTokens: number | null): void {
    // The notification is forwarded once, even when a call is retried before its first delta.
    if (this.hasStarted) return;
    this.hasStarted = true;
    this.inner.started(promptTokens);
  }

  delta(delta: ReplyDelta): void {
    this.hasDeltas = true;
    if (delta.kind === 'reasoning') this.reasoning += delta.text;
    else if (delta.kind === 'text') this.text += delta.text;
    else if (delta.kind === 'call') this.calls.set(delta.index, { id: delta.id, name: delta.name, arguments: '' });
    else {
      const call = this.calls.get(delta.index);
      if (call !== undefined) call.arguments += delta.text;
    }
    this.inner.delta(delta);
  }

  /** Converts the error of a failed call to one that is not retried, if a delta has been forwarded. */
  finalFailure(error: unknown): unknown {
    if (!this.hasDeltas || !FloeError.is(error) || error.code !== 'engine_unavailable') return error;
    return new FloeError('engine_error', error.message, error.details, error);
  }

  /**
   * Returns the message with the call ids that were forwarded. Throws `engine_error` when the message does not begin with the forwarded
   * deltas, because the rest of such a message cannot be sent to the listener.
   */
  completedBy(message: AssistantMessage, engineId: string): AssistantMessage {
    const toolCalls = message.tool_calls ?? [];
    const isContinuation =
      (message.reasoning_content ?? '').startsWith(this.reasoning) &&
      (message.content ?? '').startsWith(this.text) &&
      [...this.calls].every(([index, call]) => isCompletionOf(call, toolCalls[index]));
    if (!isContinuation) {
      const text = `engine ${engineId}: the resumed reply contradicts the part that was streamed`;
      throw new FloeError('engine_error', text, { engine_id: engineId });
    }
    if (this.calls.size === 0) return message;
    return { ...message, tool_calls: toolCalls.map((call, i) => ({ ...call, id: this.calls.get(i)?.id ?? call.id })) };
  }
}

function isCompletionOf(partial: RelayedCall, complete: ToolCall | undefined): boolean {
  if (complete === undefined) return false;
  return complete.function.name === partial.name && complete.function.arguments.startsWith(partial.arguments);
}
