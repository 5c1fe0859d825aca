import { z } from 'zod';
import type { FloeError } from '../../core/errors.ts';
import { ChatStream, callPieceSchema } from '../chat-stream.ts';
import type { GenerateRequest, ReplyListener } from '../engine.ts';
import type { IdScanner, ScannedIds } from '../id-scan.ts';
import {
  brokenOffEarly,
  foreignUsageSchema,
  idsOf,
  idsSchema,
  logprobsSchema,
  parseReplyJson,
  refusal,
  refuseForeignId,
  refuseForeignModel,
  shaped,
} from '../record.ts';
import { metadataSchema, type ReplyReading, sglextSchema } from './chat-reply.ts';
import {
  type ChatReply,
  idListSchema,
  matchedStopSchema,
  readContent,
  recordable,
  usageOf,
  versionName,
} from './facts.ts';

const choiceSchema = z.looseObject({
  index: z.literal(0).optional(),
  delta: z.looseObject({
    content: z.string().nullish(),
    reasoning_content: z.string().nullish(),
    tool_calls: z.array(callPieceSchema).nullish(),
  }),
  finish_reason: z.string().nullish(),
  matched_stop: matchedStopSchema,
  prompt_token_ids: idsSchema,
  token_ids: idListSchema.nullish(),
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
  usage: foreignUsageSchema.nullish(),
});
type ForeignChunk = z.output<typeof chunkSchema>;

/**
 * Reads a 200 reply of a chat completion that comes as a stream, and tells a listener on the way. Ids come in pieces beside the text,
 * or all of them in one of the last chunks; the reply is refused for the same reasons as one that comes whole. One that has lost ids or
 * log-probabilities, as happened where a parser swallowed the text, is refused with `details.lost_ids`.
 */
export class ChatStreamReader {
  private readonly request: GenerateRequest;
  private readonly scanner: IdScanner;
  private readonly options: ReplyReading;
  private readonly models: ReadonlySet<string>;
  private readonly stream: ChatStream;
  private promptIds: Int32Array | null = null;
  private readonly pieces: number[] = [];
  private listed: readonly number[] | null = null;
  private readonly logprobs: unknown[] = [];
  private experts: string | null = null;
  private metadata: ForeignChunk['metadata'];
  private finishReason: string | null = null;
  private matched: ForeignChoice['matched_stop'];
  private usage: ForeignChunk['usage'] = null;

  constructor(request: GenerateRequest, scanner: IdScanner, listener: ReplyListener, options: ReplyReading) {
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

  /** Takes bytes, cut anywhere. True when the stream is complete. Throws `engine_error`. */
  push(bytes: Buffer): boolean {
    return this.stream.push(bytes);
  }

  /** The whole reply, when the stream has ended. Throws as {@link parseChatReply} does. */
  reply(): ChatReply {
    const { promptIds } = this;
    const { finishReason, usage } = this.stream.whole(this.finishReason, this.usage);
    if (finishReason === 'abort' && usage.completion_tokens === 0) throw brokenOffEarly();
    if (promptIds === null) throw lost('the ids of its prompt are missing');
    const message = this.stream.message();
    const ids = this.ids();
    if (ids.length !== usage.completion_tokens || this.logprobs.length !== ids.length) {
      const counts = `${ids.length} ids and ${this.logprobs.length} log-probabilities`;
      throw lost(`it has ${counts}, but usage.completion_tokens is ${usage.completion_tokens}`);
    }
    const sampled = recordable(
      {
        promptIds,
        responseIds: ids,
        responseLogprobs: readContent(this.logprobs, ids.length),
        versions: this.metadata?.weight_versions,
        endVersion: versionName(this.metadata?.weight_version),
        finishReason,
        matched: this.matched,
        usage: usageOf(usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details?.cached_tokens),
        experts: this.experts,
      },
      this.options.ends,
    );
    return { ...sampled, message };
  }

  private ids(): Int32Array {
    const { pieces, listed } = this;
    if (listed === null) return Int32Array.from(pieces);
    const same = pieces.length === listed.length && pieces.every((id, index) => listed[index] === id);
    if (pieces.length > 0 && !same) throw refusal('the ids of its chunks and sglext.output_ids are not the same');
    return Int32Array.from(listed);
  }

  private takeChunk(data: Buffer): void {
    // Prompt ids come once, and are most of the bytes of their chunk.
    const scanned = this.promptIds === null ? this.scanner.scan(data, this.options.key, this.request.sessionId) : null;
    const chunk = shaped(chunkSchema, parseReplyJson(data, scanned));
    refuseForeignId(chunk.id, this.request.completionId);
    refuseForeignModel(chunk.model, this.models);
    const choice = chunk.choices[0];
    const promptIds = chunk.sglext?.input_ids ?? choice?.prompt_token_ids ?? chunk.prompt_token_ids;
    if (promptIds !== null && promptIds !== undefined) this.takePromptIds(promptIds, scanned);
    if (chunk.sglext) this.takeExtension(chunk.sglext);
    if (chunk.metadata) this.metadata = chunk.metadata;
    if (chunk.usage) this.usage = chunk.usage;
    if (choice !== undefined) this.takeChoice(choice);
  }

  private takePromptIds(ids: number[] | number, scanned: ScannedIds | null): void {
    if (this.promptIds !== null) throw refusal(`${this.options.key} comes twice`);
    this.promptIds = idsOf(ids, scanned, this.options.key);
  }

  private takeExtension({ output_ids, routed_experts }: z.output<typeof sglextSchema>): void {
    if (routed_experts) this.experts = routed_experts;
    if (!output_ids) return;
    if (output_ids.length !== 1) throw refusal(`sglext.output_ids has ${output_ids.length} lists for one choice`);
    this.listed = output_ids[0] ?? [];
  }

  private takeChoice(choice: ForeignChoice): void {
    for (const id of choice.token_ids ?? []) this.pieces.push(id);
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

function lost(what: string): FloeError {
  return refusal(what, undefined, { lost_ids: true });
}
