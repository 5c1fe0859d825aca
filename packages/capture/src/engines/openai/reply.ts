import { FloeError } from '@floe-rl/core';
import type { AssistantMessage, FinishReason } from '@floe-rl/core/schema';
import { z } from 'zod';
import { type CallDelta, ChatStream, callDeltaSchema, truncatedStream } from '../chat/chat-stream.ts';
import { assistantMessage, toolCallsFrom } from '../chat/messages.ts';
import { invalidReply, parseReplyJson, parseWith, usageFrom, usageSchema } from '../chat/reply-tokens.ts';
import type { GenerateReply, ReplyListener } from '../engine.ts';

export const messageSchema = z.looseObject({
  content: z.string().nullish(),
  refusal: z.string().nullish(),
  reasoning: z.string().nullish(),
  reasoning_content: z.string().nullish(),
  tool_calls: z
    .array(
      z.looseObject({
        id: z.string().min(1),
        function: z.looseObject({ name: z.string().min(1), arguments: z.string() }),
      }),
    )
    .nullish(),
});

const replySchema = z.looseObject({
  choices: z.array(z.looseObject({ message: messageSchema, finish_reason: z.string() })).length(1),
  usage: usageSchema.nullish(),
});

/**
 * Parses a reply of status 200 that is not streamed. Throws as {@link textReply} does, and `engine_error` naming the first invalid field.
 */
export function parseChatReply(body: Buffer): GenerateReply {
  const reply = parseWith(replySchema, parseReplyJson(body, null));
  const [choice] = reply.choices;
  if (choice === undefined) throw invalidReply('choices is empty');
  return textReply(assistantMessageOf(choice.message), choice.finish_reason, reply.usage);
}

/**
 * Makes a reply without token ids. Throws `engine_error` when the usage is missing or the finish reason is unknown, and `engine_rejected`
 * when the API's content filter withheld the reply.
 */
function textReply(
  message: AssistantMessage,
  finishReason: string,
  usage: z.output<typeof usageSchema> | null | undefined,
): GenerateReply {
  const finish = finishReasonOf(finishReason, message);
  if (!usage) throw invalidReply('usage is missing, and it is never estimated');
  return {
    promptIds: new Int32Array(0),
    responseIds: new Int32Array(0),
    responseLogprobs: new Float32Array(0),
    versionSpans: [],
    routedExperts: null,
    logprobsMode: null,
    message,
    finishReason: finish,
    stop: null,
    usage: usageFrom(usage),
  };
}

/**
 * Converts a finish reason. Throws `engine_error` for an unknown one, and `engine_rejected` when the API's content filter withheld the reply.
 */
export function finishReasonOf(reason: string, message: AssistantMessage): FinishReason {
  switch (reason) {
    case 'length':
    case 'tool_calls':
      return reason;
    case 'stop':
      // Some APIs report `stop` for replies with tool calls too. A harness would not execute the tool calls then, so the reason is
      // corrected.
      return message.tool_calls === undefined ? 'stop' : 'tool_calls';
    case 'content_filter':
      throw new FloeError('engine_rejected', "the API's content filter withheld the reply", { content_filter: true });
    default:
      throw invalidReply(`finish_reason is ${JSON.stringify(reason)}`);
  }
}

export function assistantMessageOf(message: z.output<typeof messageSchema>): AssistantMessage {
  const reasoning = message.reasoning_content ?? message.reasoning ?? '';
  // A refusal is also text that the model sampled, but it arrives in the separate field `refusal`.
  return assistantMessage(message.content ?? message.refusal ?? '', reasoning, toolCallsFrom(message.tool_calls));
}

const chunkChoiceSchema = z.looseObject({
  index: z.literal(0).nullish(),
  delta: z
    .looseObject({
      content: z.string().nullish(),
      refusal: z.string().nullish(),
      reasoning: z.string().nullish(),
      reasoning_content: z.string().nullish(),
      tool_calls: z.array(callDeltaSchema).nullish(),
    })
    .nullish(),
  finish_reason: z.string().nullish(),
});

const chunkSchema = z.looseObject({
  choices: z.array(chunkChoiceSchema).max(1).nullish(),
  usage: usageSchema.nullish(),
});

/** Reads a streamed reply of status 200 and notifies a listener while it arrives. The reply's message is assembled from the deltas. */
export class ChatStreamReader {
  private readonly stream: ChatStream;
  private callCount = 0;
  private finishReason: string | null = null;
  private usage: z.output<typeof usageSchema> | null = null;

  constructor(listener: ReplyListener) {
    this.stream = new ChatStream({
      listener,
      takeChunk: (data) => this.takeChunk(data),
      promptTokens: () => this.usage?.prompt_tokens ?? null,
    });
  }

  /**
   * Processes the next bytes of the body, which may be split at any position. Returns true when the stream is complete. Throws
   * `engine_error` for an invalid chunk.
   */
  push(bytes: Buffer): boolean {
    return this.stream.push(bytes);
  }

  /**
   * Returns the reply. It must be called when the stream has ended. `[DONE]` is not required, because some APIs do not send it. Throws as
   * {@link textReply} does.
   */
  reply(): GenerateReply {
    const { finishReason, usage } = this;
    if (finishReason === null) throw truncatedStream('it has no finish chunk');
    const message = this.stream.message();
    this.stream.start();
    return textReply(message, finishReason, usage);
  }

  private takeChunk(data: Buffer): void {
    const chunk = parseWith(chunkSchema, parseReplyJson(data, null));
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (choice === undefined) return;
    if (choice.finish_reason) this.finishReason = choice.finish_reason;
    const { delta } = choice;
    if (!delta) return;
    this.stream.addReasoning(delta.reasoning_content ?? delta.reasoning ?? '');
    this.stream.addText(delta.content ?? delta.refusal ?? '');
    for (const piece of delta.tool_calls ?? []) this.takeCall(piece);
  }

  private takeCall(piece: CallDelta): void {
    // Some APIs do not number tool calls. In their streams, a piece with an id begins the next tool call.
    const at = piece.index ?? (piece.id ? this.callCount : this.callCount - 1);
    this.stream.addCall(at, piece);
    this.callCount = Math.max(this.callCount, at + 1);
  }
}
