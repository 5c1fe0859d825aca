import { z } from 'zod';
import type { GenerateReply, ReplyListener } from '../engine.ts';
import { EventSplitter } from '../event-stream.ts';
import { MessageBuilder } from '../message-builder.ts';
import { foreignUsageSchema, parseReplyJson, refusal, shaped } from '../record.ts';
import { textReply } from './reply.ts';

const DONE = Buffer.from('[DONE]');

const callPieceSchema = z.looseObject({
  index: z.int().min(0).nullish(),
  id: z.string().nullish(),
  function: z.looseObject({ name: z.string().nullish(), arguments: z.string().nullish() }).nullish(),
});

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
  private readonly listener: ReplyListener;
  private readonly events = new EventSplitter();
  private readonly message: MessageBuilder;
  private calls = 0;
  private finishReason: string | null = null;
  private usage: z.output<typeof foreignUsageSchema> | null = null;
  private started = false;
  private done = false;

  constructor(listener: ReplyListener) {
    this.listener = listener;
    this.message = new MessageBuilder((delta) => {
      this.start();
      listener.delta(delta);
    });
  }

  /** Takes bytes, cut anywhere. True when the stream is complete. Throws `engine_error`. */
  push(bytes: Buffer): boolean {
    this.events.push(bytes, (data) => {
      if (this.done) return;
      if (data.equals(DONE)) this.done = true;
      else this.takeChunk(data);
    });
    this.message.flush();
    return this.done;
  }

  /** The whole reply, when the stream has ended; not all APIs end it with `[DONE]`. Throws as `textReply` does. */
  reply(): GenerateReply {
    const { finishReason, usage } = this;
    if (finishReason === null) throw refusal('the stream broke off: it has no finish chunk');
    const incomplete = this.message.incompleteCall();
    if (incomplete !== null) throw refusal(`tool_calls.${incomplete.index} has no ${incomplete.field}`);
    this.start();
    return textReply({ message: this.message.message(), finishReason, usage });
  }

  private takeChunk(data: Buffer): void {
    const chunk = shaped(chunkSchema, parseReplyJson(data, null));
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (choice === undefined) return;
    if (choice.finish_reason) this.finishReason = choice.finish_reason;
    const { delta } = choice;
    if (!delta) return;
    this.message.addReasoning(delta.reasoning_content ?? delta.reasoning ?? '');
    this.message.addText(delta.content ?? delta.refusal ?? '');
    for (const piece of delta.tool_calls ?? []) this.takeCall(piece);
  }

  private takeCall({ index, id, function: piece }: z.output<typeof callPieceSchema>): void {
    // Where calls are not numbered, an id begins the next one.
    const at = index ?? (id ? this.calls : this.calls - 1);
    if (at < 0 || !this.message.addCall(at, id ?? '', piece?.name ?? '', piece?.arguments ?? '')) {
      throw refusal(`tool_calls.${at} comes before those in front of it`);
    }
    this.calls = Math.max(this.calls, at + 1);
  }

  private start(): void {
    if (this.started) return;
    this.started = true;
    this.listener.started(this.usage?.prompt_tokens ?? null);
  }
}
