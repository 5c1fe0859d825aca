import { FloeError } from '@floe-rl/core';
import { z } from 'zod';
import { ChatStream, callDeltaSchema } from '../chat/chat-stream.ts';
import type { ScannedIds } from '../chat/reply-scan.ts';
import {
  idsFrom,
  idsSchema,
  invalidReply,
  logprobsSchema,
  parseReplyJson,
  parseWith,
  usageSchema,
  versionsSchema,
} from '../chat/reply-tokens.ts';
import type { ReplyListener } from '../engine.ts';
import {
  assertOwnReply,
  checkedReply,
  lostIdsError,
  type ParsedReply,
  type ReplyContext,
  stopReasonSchema,
} from './reply.ts';
import { foreignRoutingSchema, routedExpertsOf } from './routing.ts';

const choiceSchema = z.looseObject({
  index: z.literal(0).optional(),
  delta: z.looseObject({
    content: z.string().nullish(),
    reasoning: z.string().nullish(),
    reasoning_content: z.string().nullish(),
    tool_calls: z.array(callDeltaSchema.extend({ index: z.int().min(0) })).nullish(),
  }),
  finish_reason: z.string().nullish(),
  stop_reason: stopReasonSchema,
  prompt_token_ids: idsSchema,
  token_ids: idsSchema,
  logprobs: logprobsSchema,
  weight_versions: versionsSchema,
  routed_experts: foreignRoutingSchema,
});
type ForeignChoice = z.output<typeof choiceSchema>;

const chunkSchema = z.looseObject({
  id: z.string().nullish(),
  model: z.string().nullish(),
  choices: z.array(choiceSchema).max(1),
  prompt_token_ids: idsSchema,
  usage: usageSchema.nullish(),
});

/**
 * Reads a streamed chat completion of status 200 and notifies a listener while it arrives. The result equals that of {@link parseChatReply}
 * for the same sampling, and the stream is rejected for the same reasons. A stream that has lost token ids is rejected with
 * `details.lost_ids`: the tool call parsers and reasoning parsers of some vLLM releases drop the ids of the text that they remove.
 */
export class ChatStreamReader {
  private readonly context: ReplyContext;
  private readonly stream: ChatStream;
  private promptIds: Int32Array | null = null;
  private readonly responseIds: number[] = [];
  private logprobs: unknown[] | null = null;
  private versions: ForeignChoice['weight_versions'];
  private routing: ForeignChoice['routed_experts'];
  private finishReason: string | null = null;
  private stopReason: ForeignChoice['stop_reason'];
  private usage: z.output<typeof usageSchema> | null = null;

  constructor(context: ReplyContext, listener: ReplyListener) {
    this.context = context;
    this.stream = new ChatStream({
      listener,
      takeChunk: (data) => this.takeChunk(data),
      promptTokens: () => this.promptIds?.length ?? null,
    });
  }

  /**
   * Processes the next bytes of the body, which may be split at any position. Returns true when the stream is complete. Throws
   * `engine_error` for an invalid chunk.
   */
  push(bytes: Buffer): boolean {
    return this.stream.push(bytes);
  }

  /** Returns the reply. It must be called when the stream has ended. Throws `engine_error` when the reply is incomplete or invalid. */
  reply(): ParsedReply {
    const { promptIds } = this;
    const { finishReason, usage } = this.stream.end(this.finishReason, this.usage);
    if (promptIds === null) {
      throw lostIdsError(invalidReply('prompt_token_ids is missing; the server does not honour return_token_ids'));
    }
    const message = this.stream.message();
    const responseIds = Int32Array.from(this.responseIds);
    const { logprobs, versions, stopReason } = this;
    try {
      const routedExperts = routedExpertsOf(this.routing, promptIds.length + responseIds.length);
      const fields = { promptIds, responseIds, logprobs, versions, message, finishReason, stopReason, usage };
      return checkedReply({ ...fields, routedExperts });
    } catch (error) {
      const hasLostIds = responseIds.length !== usage.completion_tokens || promptIds.length !== usage.prompt_tokens;
      throw hasLostIds && FloeError.is(error) ? lostIdsError(error) : error;
    }
  }

  private takeChunk(data: Buffer): void {
    // Only the first chunk contains the prompt ids, and they are most of that chunk's bytes. They are therefore read with a scanner, which is
    // several times as fast as JSON.parse.
    const scanned =
      this.promptIds === null ? this.context.scanner.scan(data, 'prompt_token_ids', this.context.sessionId) : null;
    const chunk = parseWith(chunkSchema, parseReplyJson(data, scanned));
    assertOwnReply(chunk, this.context);
    const choice = chunk.choices[0];
    const promptIds = chunk.prompt_token_ids ?? choice?.prompt_token_ids;
    if (promptIds !== null && promptIds !== undefined) this.takePromptIds(promptIds, scanned);
    if (chunk.usage) this.usage = chunk.usage;
    if (choice !== undefined) this.takeChoice(choice);
  }

  private takePromptIds(ids: number[] | number, scanned: ScannedIds | null): void {
    if (this.promptIds !== null) throw invalidReply('prompt_token_ids comes twice');
    this.promptIds = idsFrom(ids, scanned, 'prompt_token_ids');
  }

  private takeChoice(choice: ForeignChoice): void {
    if (this.finishReason !== null) assertEmptyAfterFinish(choice);
    if (choice.token_ids) for (const id of idsFrom(choice.token_ids, null, 'token_ids')) this.responseIds.push(id);
    const entries = choice.logprobs?.content;
    if (entries) {
      this.logprobs ??= [];
      for (const entry of entries) this.logprobs.push(entry);
    }
    if (choice.weight_versions?.length) this.versions = choice.weight_versions;
    if (choice.routed_experts) this.routing = choice.routed_experts;
    if (choice.finish_reason) {
      this.finishReason = choice.finish_reason;
      this.stopReason = choice.stop_reason;
    }
    const { content, reasoning, reasoning_content, tool_calls } = choice.delta;
    this.stream.addReasoning(reasoning ?? reasoning_content ?? '');
    this.stream.addText(content ?? '');
    for (const piece of tool_calls ?? []) this.stream.addCall(piece.index, piece);
    if (this.responseIds.length > 0) this.stream.start();
  }
}

/** Throws `engine_error` for a chunk that arrives after the finish chunk and has content. A chunk without content is allowed. */
function assertEmptyAfterFinish({ finish_reason, delta, token_ids, logprobs }: ForeignChoice): void {
  if (finish_reason) throw invalidReply('a second finish_reason comes after the finish chunk');
  if (Array.isArray(token_ids) && token_ids.length > 0) throw invalidReply('token_ids come after the finish chunk');
  if (logprobs?.content?.length) throw invalidReply('logprobs come after the finish chunk');
  const text = delta.content || delta.reasoning || delta.reasoning_content;
  if (text || delta.tool_calls?.length) throw invalidReply('content comes after the finish chunk');
}
