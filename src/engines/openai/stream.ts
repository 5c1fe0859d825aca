import { z } from 'zod';
import { brokenOff, type CallPiece, ChatStream, callPieceSchema } from '../chat-stream.ts';
import type { GenerateReply, ReplyListener } from '../engine.ts';
import { foreignUsageSchema, parseReplyJson, shaped } from '../record.ts';
import { textReply } from './reply.ts';

const choiceSchema = z.looseObject({
  index: z.literal(0).nullish(),
  delta: z
    .looseObject({
      content: z.string().nullish(),
      refusal: z.string().nullish(),
      reasoning: z.string().nullish(),
      reasoning_content: z.string().nullish(),
      tool_calls: z.array(callPieceSchema).nullish(),
    })
    .nullish(),
  finish_reason: z.string().nullish(),
});

const chunkSchema = z.looseObject({
  choices: z.array(choiceSchema).max(1).nullish(),
  usage: foreignUsageSchema.nullish(),
});

/** Reads a 200 reply that comes as a stream, and tells a listener on the way. Its message is what the deltas add up to. */
export class ReplyStreamReader {
  private readonly stream: ChatStream;
  private calls = 0;
  private finishReason: string | null = null;
  private usage: z.output<typeof foreignUsageSchema> | null = null;

  constructor(listener: ReplyListener) {
    this.stream = new ChatStream({
      listener,
      takeChunk: (data) => this.takeChunk(data),
      promptTokens: () => this.usage?.prompt_tokens ?? null,
    });
  }

  /** Takes bytes, cut anywhere. True when the stream is complete. Throws `engine_error`. */
  push(bytes: Buffer): boolean {
    return this.stream.push(bytes);
  }

  /** The whole reply, when the stream has ended; not all APIs end it with `[DONE]`. Throws as `textReply` does. */
  reply(): GenerateReply {
    const { finishReason, usage } = this;
    if (finishReason === null) throw brokenOff('it has no finish chunk');
    const message = this.stream.message();
    this.stream.start();
    return textReply({ message, finishReason, usage });
  }

  private takeChunk(data: Buffer): void {
    const chunk = shaped(chunkSchema, parseReplyJson(data, null));
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

  private takeCall(piece: CallPiece): void {
    // Where calls are not numbered, an id begins the next one.
    const at = piece.index ?? (piece.id ? this.calls : this.calls - 1);
    this.stream.addCall(at, piece);
    this.calls = Math.max(this.calls, at + 1);
  }
}
