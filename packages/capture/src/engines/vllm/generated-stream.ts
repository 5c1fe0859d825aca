import { FloeError } from '@floe-rl/core';
import { z } from 'zod';
import { EventSplitter, STREAM_END, truncatedStream } from '../chat/chat-stream.ts';
import { compareIds } from '../chat/reply-scan.ts';
import {
  idsFrom,
  idsSchema,
  invalidReply,
  logprobsSchema,
  parseReplyJson,
  parseWith,
  usageSchema,
} from '../chat/reply-tokens.ts';
import { type Generated, generatedFields, generatedOf, type SentIds, showsSentPrompt } from './generated.ts';
import { assertOwnReply, lostIdsError, type ReplyContext } from './reply.ts';

const choiceSchema = z.looseObject({
  ...generatedFields,
  index: z.literal(0).optional(),
  logprobs: logprobsSchema,
  finish_reason: z.string().nullish(),
});
type ForeignChoice = z.output<typeof choiceSchema>;

const chunkSchema = z.looseObject({
  request_id: z.string().nullish(),
  model: z.string().nullish(),
  choices: z.array(choiceSchema).max(1),
  prompt_token_ids: idsSchema,
  usage: usageSchema.nullish(),
});

const NO_IDS = new Int32Array(0);

/** Receives all ids of a reply that have been sampled so far, after each chunk that added some and did not end the reply. */
type IdsListener = (ids: readonly number[]) => void;

/**
 * Reads a streamed reply of `/inference/v1/generate` with status 200. The result equals that of `parseGenerated` for the same sampling, and
 * the stream is rejected for the same reasons.
 */
export class GeneratedStream {
  private readonly sent: SentIds;
  private readonly context: ReplyContext;
  private readonly onIds: IdsListener;
  private readonly events = new EventSplitter();
  private readonly responseIds: number[] = [];
  private readonly logprobs: unknown[] = [];
  private isPromptShown = false;
  private versions: ForeignChoice['weight_versions'];
  private routing: ForeignChoice['routed_experts'];
  private finishReason: string | null = null;
  private stopReason: ForeignChoice['stop_reason'];
  private usage: z.output<typeof usageSchema> | null = null;
  private hasEnded = false;

  constructor(sent: SentIds, context: ReplyContext, onIds: IdsListener) {
    this.sent = sent;
    this.context = context;
    this.onIds = onIds;
  }

  /**
   * Processes the next bytes of the body, which may be split at any position. Returns true when the stream is complete. Throws
   * `engine_error` for an invalid chunk.
   */
  push(bytes: Buffer): boolean {
    const countBefore = this.responseIds.length;
    this.events.push(bytes, (data) => {
      if (this.hasEnded) return;
      if (data.equals(STREAM_END)) this.hasEnded = true;
      else this.takeChunk(data);
    });
    if (this.responseIds.length > countBefore && this.finishReason === null) this.onIds(this.responseIds);
    return this.hasEnded;
  }

  /** Returns the reply. It must be called when the stream has ended. Throws `engine_error` when the reply is incomplete or invalid. */
  reply(): Generated {
    const { finishReason, usage, versions, routing, stopReason, logprobs, sent } = this;
    if (finishReason === null) throw truncatedStream('it has no finish chunk');
    if (!this.hasEnded) throw truncatedStream('it has no [DONE]');
    if (usage === null) {
      const reason = 'usage is missing; the server does not honour stream_options.include_usage';
      throw lostIdsError(invalidReply(reason));
    }
    const responseIds = Int32Array.from(this.responseIds);
    try {
      return generatedOf(sent, { responseIds, logprobs, versions, finishReason, stopReason, usage, routing });
    } catch (error) {
      throw FloeError.is(error) && responseIds.length !== usage.completion_tokens ? lostIdsError(error) : error;
    }
  }

  private takeChunk(data: Buffer): void {
    const compared = this.isPromptShown ? null : compareIds(data, 'prompt_token_ids', this.sent.text, this.sent.parts);
    const chunk = parseWith(chunkSchema, parseReplyJson(data, compared && { ids: NO_IDS, ...compared }));
    assertOwnReply({ id: chunk.request_id, model: chunk.model }, this.context);
    if (!this.isPromptShown) this.isPromptShown = showsSentPrompt(chunk.prompt_token_ids, compared, this.sent);
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices[0];
    if (choice !== undefined) this.takeChoice(choice);
  }

  private takeChoice(choice: ForeignChoice): void {
    const ids = choice.token_ids ? idsFrom(choice.token_ids, null, 'token_ids') : NO_IDS;
    if (this.finishReason !== null && (ids.length > 0 || choice.finish_reason)) {
      throw invalidReply('token_ids or a finish_reason come after the finish chunk');
    }
    for (const id of ids) this.responseIds.push(id);
    for (const entry of choice.logprobs?.content ?? []) this.logprobs.push(entry);
    if (choice.weight_versions?.length) this.versions = choice.weight_versions;
    if (choice.routed_experts) this.routing = choice.routed_experts;
    if (!choice.finish_reason) return;
    this.finishReason = choice.finish_reason;
    this.stopReason = choice.stop_reason;
  }
}
