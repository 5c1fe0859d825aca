import type { FloeError } from '@floe-rl/core';
import type { AssistantMessage, FinishReason } from '@floe-rl/core/schema';
import type { z } from 'zod';
import type { ReplyListener } from '../engine.ts';
import { lostIdsError, type ReplyFields } from './checked-reply.ts';
import { EventSplitter, STREAM_END } from './event-stream.ts';
import { MessageBuilder } from './messages.ts';
import { type CallDelta, type Delta, reportedStop, sampledTextOf, thinkingOf } from './reply-fields.ts';
import type { IdScanner, ScannedIds } from './reply-scan.ts';
import {
  abortedBeforeFirstToken,
  assertReplyId,
  assertReplyModel,
  idsFrom,
  invalidReply,
  type JsonRange,
  parseReplyJson,
  parseWith,
  type usageSchema,
} from './reply-tokens.ts';

type ReportedIds = number[] | number | null | undefined;

/** The choice of a chunk, with the fields that the reader knows. All fields may be missing. */
type ForeignChoice = {
  readonly delta?: Delta | null | undefined;
  readonly finish_reason?: string | null | undefined;
  readonly stop_reason?: ReplyFields['reported'];
  readonly matched_stop?: ReplyFields['reported'];
  readonly prompt_token_ids?: ReportedIds;
  readonly token_ids?: readonly number[] | null | undefined;
  readonly logprobs?: { readonly content?: readonly unknown[] | null | undefined } | null | undefined;
};

/** A chunk, with the fields that the reader knows. */
type ForeignChunk = {
  readonly id?: string | null | undefined;
  readonly request_id?: string | null | undefined;
  readonly model?: string | null | undefined;
  readonly choices?: readonly ForeignChoice[] | null | undefined;
  readonly prompt_token_ids?: ReportedIds;
  readonly usage?: z.output<typeof usageSchema> | null | undefined;
};

/** The parts of reading a stream that differ between engines. */
export type StreamFormat<Schema extends z.ZodType<ForeignChunk>> = {
  readonly schema: Schema;
  /** Converts a finish reason. Throws `engine_error` for an unknown reason. */
  readonly finishReason: (reason: string) => FinishReason;
  /** Whether the stream may end without `[DONE]`, which some APIs do not send. */
  readonly endsWithoutDone: boolean;
  /** Whether a chunk that adds nothing may repeat the finish reason, as some APIs do in the chunk with the usage. */
  readonly repeatsFinish: boolean;
  /** Returns the prompt's ids when they are in a field that only this engine has. */
  readonly promptOf?: (chunk: z.output<Schema>) => ReportedIds;
  /** Takes the fields of a chunk that only this engine has. */
  readonly takeMore?: (chunk: z.output<Schema>) => void;
};

/** Finds the ids of the prompt in a stream. */
export interface StreamedPrompt {
  /** Name of the field with the ids. */
  readonly field: string;
  /** Finds the ids in the bytes of a chunk, which is not parsed yet; `null` when they are not there. */
  find(data: Buffer): JsonRange | null;
  /** Takes the ids that `find` has found, or that are the value of the field. Throws `engine_error` for invalid ids. */
  take(value: number[] | number): void;
  /** Returns the ids at the end of the stream. Throws `engine_error` when they are missing. */
  ids(): Int32Array;
  /** Number of ids; `null` before they have arrived. */
  readonly count: number | null;
}

/**
 * Reads the prompt's ids with a scanner. Only one chunk contains them, and they are most of that chunk's bytes. Until it has arrived, each
 * chunk is searched for the ids with the scanner, which is several times as fast as JSON.parse.
 */
export class ScannedPrompt implements StreamedPrompt {
  readonly field: string;
  private readonly scanner: IdScanner;
  private readonly sessionId: string;
  private scanned: ScannedIds | null = null;
  private taken: Int32Array | null = null;

  constructor(scanner: IdScanner, field: string, sessionId: string) {
    this.scanner = scanner;
    this.field = field;
    this.sessionId = sessionId;
  }

  get count(): number | null {
    return this.taken?.length ?? null;
  }

  find(data: Buffer): JsonRange | null {
    this.scanned = this.scanner.scan(data, this.field, this.sessionId);
    return this.scanned;
  }

  take(value: number[] | number): void {
    this.taken = idsFrom(value, this.scanned, this.field);
  }

  ids(): Int32Array {
    if (this.taken !== null) return this.taken;
    throw lostIdsError(invalidReply(`${this.field} is missing; the server does not honour return_token_ids`));
  }
}

/** A streamed reply that is being read. */
export type ReplyStream<T> = {
  /** Processes bytes as {@link StreamReader.push} does. */
  push(bytes: Buffer): boolean;
  /** Returns the reply. It must be called when the stream has ended. Throws `engine_error` when the reply is incomplete or invalid. */
  reply(): T;
};

type StreamDeps = {
  /** Receives the message while it arrives; `null` when the stream has token ids and no message. */
  readonly listener: ReplyListener | null;
  /** `null` when the server reports no token ids. */
  readonly prompt: StreamedPrompt | null;
  /** The call and the models that a chunk may name. `null` when a chunk may name any call and model. */
  readonly owner: { readonly completionId: string; readonly models: ReadonlySet<string> } | null;
  /** Receives all ids so far, after each read that added some and did not end the reply. */
  readonly onIds?: (ids: readonly number[]) => void;
};

/** The fields of a streamed reply, with the message that its chunks form. An engine adds the fields that only it has. */
type StreamedFields = Omit<ReplyFields, 'versions' | 'ends'> & { readonly message: AssistantMessage };

const NO_IDS = new Int32Array(0);

/**
 * Reads a streamed reply of status 200, of any engine, and notifies a listener while it arrives. The result is the same as for the same reply
 * in one body, and a stream is rejected for the same reasons as a body. After the finish reason, only the usage and lists of ids may follow.
 */
export class StreamReader<Schema extends z.ZodType<ForeignChunk>> {
  private readonly format: StreamFormat<Schema>;
  private readonly deps: StreamDeps;
  private readonly events = new EventSplitter();
  private readonly builder: MessageBuilder;
  private readonly responseIds: number[] = [];
  private logprobs: unknown[] | null = null;
  private callCount = 0;
  private isPromptShown: boolean;
  private finishReason: string | null = null;
  private reported: ReplyFields['reported'];
  private usage: z.output<typeof usageSchema> | null = null;
  private hasStarted = false;
  private hasEnded = false;

  constructor(format: StreamFormat<Schema>, deps: StreamDeps) {
    this.format = format;
    this.deps = deps;
    this.isPromptShown = deps.prompt === null;
    this.builder = new MessageBuilder((delta) => {
      this.start();
      deps.listener?.delta(delta);
    });
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
    // Flushes once for all events of one read, so that a fast engine costs one delta per read instead of one per token.
    this.builder.flush();
    if (this.responseIds.length > countBefore && this.finishReason === null) this.deps.onIds?.(this.responseIds);
    return this.hasEnded;
  }

  /**
   * Returns the fields of the reply, which are not checked yet. It must be called when the stream has ended. Throws `engine_error` naming
   * the part that is missing, and `engine_unavailable` for a reply that was aborted before its first token.
   */
  fields(): StreamedFields {
    const { format, usage, responseIds, logprobs, reported } = this;
    const { prompt } = this.deps;
    if (this.finishReason === null) throw truncatedStream('it has no finish chunk');
    if (!this.hasEnded && !format.endsWithoutDone) throw truncatedStream('it has no [DONE]');
    if (usage === null) {
      const error = invalidReply('usage is missing; the server does not honour stream_options.include_usage');
      throw prompt === null ? error : lostIdsError(error);
    }
    const finishReason = format.finishReason(this.finishReason);
    if (prompt !== null && finishReason === 'abort' && usage.completion_tokens === 0 && responseIds.length === 0) {
      throw abortedBeforeFirstToken();
    }
    const promptIds = prompt?.ids() ?? NO_IDS;
    const message = this.message();
    if (prompt === null) this.start();
    return { promptIds, responseIds: Int32Array.from(responseIds), logprobs, message, finishReason, reported, usage };
  }

  private message(): AssistantMessage {
    const incomplete = this.builder.incompleteCall();
    if (incomplete !== null) throw invalidReply(`tool_calls.${incomplete.index} has no ${incomplete.field}`);
    return this.builder.message();
  }

  /** Notifies the listener, once per stream, that the first token has arrived. */
  private start(): void {
    if (this.hasStarted) return;
    this.hasStarted = true;
    const { listener, prompt } = this.deps;
    listener?.started(prompt === null ? (this.usage?.prompt_tokens ?? null) : prompt.count);
  }

  private takeChunk(data: Buffer): void {
    const { format, deps } = this;
    const found = this.isPromptShown ? null : (deps.prompt as StreamedPrompt).find(data);
    const chunk = parseWith(format.schema, parseReplyJson(data, found));
    if (deps.owner !== null) {
      assertReplyId(chunk.id ?? chunk.request_id, deps.owner.completionId);
      assertReplyModel(chunk.model, deps.owner.models);
    }
    const choice = chunk.choices?.[0];
    const promptIds = chunk.prompt_token_ids ?? choice?.prompt_token_ids ?? format.promptOf?.(chunk);
    if (promptIds !== null && promptIds !== undefined) this.takePrompt(promptIds);
    if (chunk.usage) this.usage = chunk.usage;
    format.takeMore?.(chunk);
    if (choice !== undefined) this.takeChoice(choice);
  }

  private takePrompt(ids: number[] | number): void {
    const { prompt } = this.deps;
    if (prompt === null) return;
    if (this.isPromptShown) throw invalidReply(`${prompt.field} comes twice`);
    prompt.take(ids);
    this.isPromptShown = true;
  }

  private takeChoice(choice: ForeignChoice): void {
    const { delta, token_ids: ids, logprobs, finish_reason: finish } = choice;
    if (this.finishReason !== null) this.assertEmptyAfterFinish(choice, this.finishReason);
    if (ids) for (const id of ids) this.responseIds.push(id);
    const entries = logprobs?.content;
    if (entries) {
      this.logprobs ??= [];
      for (const entry of entries) this.logprobs.push(entry);
    }
    if (finish && this.finishReason === null) {
      this.finishReason = finish;
      this.reported = reportedStop(choice);
    }
    if (delta) this.takeDelta(delta);
    if (this.responseIds.length > 0 || (this.logprobs !== null && this.logprobs.length > 0)) this.start();
  }

  private takeDelta(delta: Delta): void {
    this.builder.addReasoning(thinkingOf(delta));
    this.builder.addText(sampledTextOf(delta));
    if (delta.tool_calls) for (const piece of delta.tool_calls) this.takeCall(piece);
  }

  private takeCall({ index, id, function: piece }: CallDelta): void {
    // Some APIs do not number tool calls. In their streams, a piece with an id begins the next tool call.
    const at = index ?? (id ? this.callCount : this.callCount - 1);
    const isAdded = at >= 0 && this.builder.addCall(at, id ?? '', piece?.name ?? '', piece?.arguments ?? '');
    if (!isAdded) throw invalidReply(`tool_calls.${at} arrives before the calls with lower indices`);
    this.callCount = Math.max(this.callCount, at + 1);
  }

  /** Throws `engine_error` for a choice that arrives after the finish reason and adds something to the reply. */
  private assertEmptyAfterFinish({ finish_reason, delta, token_ids, logprobs }: ForeignChoice, finish: string): void {
    const isRepeated = this.format.repeatsFinish && finish_reason === finish;
    if (finish_reason && !isRepeated) throw invalidReply('a second finish_reason comes after the finish chunk');
    if (token_ids?.length) throw invalidReply('token_ids come after the finish chunk');
    if (logprobs?.content?.length) throw invalidReply('logprobs come after the finish chunk');
    if (!delta) return;
    const hasContent = sampledTextOf(delta) !== '' || thinkingOf(delta) !== '' || delta.tool_calls?.length;
    if (hasContent) throw invalidReply('content comes after the finish chunk');
  }
}

/** Makes the error for a stream that ended before it was complete. `missing` states the part that did not arrive. */
function truncatedStream(missing: string): FloeError {
  return invalidReply(`the stream broke off: ${missing}`);
}
