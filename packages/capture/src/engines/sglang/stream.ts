import type { FloeError } from '@floe-rl/core';
import { z } from 'zod';
import { ChatStream, callDeltaSchema } from '../chat/chat-stream.ts';
import type { IdScanner, ScannedIds } from '../chat/reply-scan.ts';
import {
  abortedBeforeFirstToken,
  assertReplyId,
  assertReplyModel,
  idsFrom,
  idsSchema,
  invalidReply,
  logprobsSchema,
  parseReplyJson,
  parseWith,
  tokenIdsSchema,
  usageSchema,
} from '../chat/reply-tokens.ts';
import type { GenerateRequest, ReplyListener } from '../engine.ts';
import { type ChatReplyOptions, metadataSchema, sglextSchema } from './chat-reply.ts';
import { type ChatReply, checkedReply, matchedStopSchema, readContent, usageOf, versionOf } from './reply.ts';

const choiceSchema = z.looseObject({
  index: z.literal(0).optional(),
  delta: z.looseObject({
    content: z.string().nullish(),
    reasoning_content: z.string().nullish(),
    tool_calls: z.array(callDeltaSchema).nullish(),
  }),
  finish_reason: z.string().nullish(),
  matched_stop: matchedStopSchema,
  prompt_token_ids: idsSchema,
  token_ids: tokenIdsSchema.nullish(),
  logprobs: logprobsSchema,
});
type ForeignChoice = z.output<typeof choiceSchema>;

const chunkSchema = z.looseObject({
  id: z.string().nullish(),
  model: z.string().nullish(),
  choices: z.array(choiceSchema).max(1),
  prompt_token_ids: idsSchema,
  sglext: sglextSchema.nullish(),
  metadata: metadataSchema.nullish(),
  usage: usageSchema.nullish(),
});
type ForeignChunk = z.output<typeof chunkSchema>;

/**
 * Reads a streamed chat completion of status 200 and notifies a listener while it arrives. Depending on the release, either every chunk has
 * token ids, or one of the last chunks has all of them. The reply is checked like one that is not streamed. A stream that has lost ids or
 * log-probabilities, because a parser dropped them together with the text, is rejected with `details.lost_ids`.
 */
export class ChatStreamReader {
  private readonly request: GenerateRequest;
  private readonly scanner: IdScanner;
  private readonly options: ChatReplyOptions;
  private readonly models: ReadonlySet<string>;
  private readonly stream: ChatStream;
  private promptIds: Int32Array | null = null;
  /** The sampled token ids from the chunks' own lists of ids. */
  private readonly chunkIds: number[] = [];
  /** All sampled token ids as the field `sglext` lists them; `null` before it has arrived. */
  private listedIds: readonly number[] | null = null;
  private readonly logprobs: unknown[] = [];
  private experts: string | null = null;
  private metadata: ForeignChunk['metadata'];
  private finishReason: string | null = null;
  private matched: ForeignChoice['matched_stop'];
  private usage: ForeignChunk['usage'] = null;

  constructor(request: GenerateRequest, scanner: IdScanner, listener: ReplyListener, options: ChatReplyOptions) {
    this.request = request;
    this.scanner = scanner;
    this.options = options;
    this.models = new Set([options.model]);
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

  /** Returns the reply. It must be called when the stream has ended. Throws as {@link checkedReply} does. */
  reply(): ChatReply {
    const { promptIds } = this;
    const { finishReason, usage } = this.stream.end(this.finishReason, this.usage);
    if (finishReason === 'abort' && usage.completion_tokens === 0) throw abortedBeforeFirstToken();
    if (promptIds === null) throw lostIdsError('the ids of its prompt are missing');
    const message = this.stream.message();
    const ids = this.responseIds();
    if (ids.length !== usage.completion_tokens || this.logprobs.length !== ids.length) {
      const counts = `${ids.length} ids and ${this.logprobs.length} log-probabilities`;
      throw lostIdsError(`it has ${counts}, but usage.completion_tokens is ${usage.completion_tokens}`);
    }
    const sampled = checkedReply(
      {
        promptIds,
        responseIds: ids,
        responseLogprobs: readContent(this.logprobs, ids.length),
        versions: this.metadata?.weight_versions,
        endVersion: versionOf(this.metadata?.weight_version),
        finishReason,
        matched: this.matched,
        usage: usageOf(usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details?.cached_tokens),
        experts: this.experts,
      },
      this.options.ends,
    );
    return { ...sampled, message };
  }

  private responseIds(): Int32Array {
    const { chunkIds, listedIds } = this;
    if (listedIds === null) return Int32Array.from(chunkIds);
    const isSame = chunkIds.length === listedIds.length && chunkIds.every((id, index) => listedIds[index] === id);
    if (chunkIds.length > 0 && !isSame) {
      throw invalidReply('the ids of its chunks and sglext.output_ids are not the same');
    }
    return Int32Array.from(listedIds);
  }

  private takeChunk(data: Buffer): void {
    // Only one chunk contains the prompt ids, and they are most of that chunk's bytes. Until it has arrived, each chunk is searched for the ids
    // with a scanner, which is several times as fast as JSON.parse.
    const scanned =
      this.promptIds === null ? this.scanner.scan(data, this.options.promptKey, this.request.sessionId) : null;
    const chunk = parseWith(chunkSchema, parseReplyJson(data, scanned));
    assertReplyId(chunk.id, this.request.completionId);
    assertReplyModel(chunk.model, this.models);
    const choice = chunk.choices[0];
    const promptIds = chunk.sglext?.input_ids ?? choice?.prompt_token_ids ?? chunk.prompt_token_ids;
    if (promptIds !== null && promptIds !== undefined) this.takePromptIds(promptIds, scanned);
    if (chunk.sglext) this.takeExtension(chunk.sglext);
    if (chunk.metadata) this.metadata = chunk.metadata;
    if (chunk.usage) this.usage = chunk.usage;
    if (choice !== undefined) this.takeChoice(choice);
  }

  private takePromptIds(ids: number[] | number, scanned: ScannedIds | null): void {
    if (this.promptIds !== null) throw invalidReply(`${this.options.promptKey} comes twice`);
    this.promptIds = idsFrom(ids, scanned, this.options.promptKey);
  }

  private takeExtension({ output_ids, routed_experts }: z.output<typeof sglextSchema>): void {
    if (routed_experts) this.experts = routed_experts;
    if (!output_ids) return;
    if (output_ids.length !== 1) throw invalidReply(`sglext.output_ids has ${output_ids.length} lists for one choice`);
    this.listedIds = output_ids[0] ?? [];
  }

  private takeChoice(choice: ForeignChoice): void {
    for (const id of choice.token_ids ?? []) this.chunkIds.push(id);
    for (const entry of choice.logprobs?.content ?? []) this.logprobs.push(entry);
    if (choice.finish_reason) {
      this.finishReason = choice.finish_reason;
      this.matched = choice.matched_stop;
    }
    const { content, reasoning_content, tool_calls } = choice.delta;
    this.stream.addReasoning(reasoning_content ?? '');
    this.stream.addText(content ?? '');
    for (const piece of tool_calls ?? []) this.stream.addCall(piece.index ?? 0, piece);
    if (this.logprobs.length > 0) this.stream.start();
  }
}

function lostIdsError(reason: string): FloeError {
  return invalidReply(reason, undefined, { lost_ids: true });
}
