import { FloeError } from '../core/errors.ts';
import type { ReplyDelta } from '../core/reply.ts';
import type { AssistantMessage, ToolCall } from '../schema/index.ts';
import type { CanonicalReply, CanonicalRequest, Dialect, StreamEnd } from './dialect.ts';

/** What was already sent of a reply, so that the rest can follow it. */
export class SentParts {
  private reasoning = 0;
  private text = 0;
  /** Characters of argument text, for each call that has begun. */
  private readonly calls: number[] = [];

  add(delta: ReplyDelta): void {
    switch (delta.kind) {
      case 'reasoning':
        this.reasoning += delta.text.length;
        return;
      case 'text':
        this.text += delta.text.length;
        return;
      case 'call':
        this.calls[delta.index] = 0;
        return;
      case 'arguments':
        this.calls[delta.index] = (this.calls[delta.index] ?? 0) + delta.text.length;
        return;
    }
  }

  /**
   * The deltas that are missing from a complete message, first those of the call that is open: what follows of another kind
   * closes it. Throws `engine_error` when more was sent than it holds, or too little of a call that is closed.
   */
  rest(message: AssistantMessage): ReplyDelta[] {
    const deltas: ReplyDelta[] = [];
    const reasoning = message.reasoning_content ?? '';
    const content = message.content ?? '';
    const calls = message.tool_calls ?? [];
    const behind = this.calls.some(
      (sent, index) => index < this.calls.length - 1 && sent < (calls[index]?.function.arguments.length ?? 0),
    );
    if (behind) throw new FloeError('engine_error', 'the engine went on with a call behind the next one');
    const overshoot =
      this.reasoning > reasoning.length ||
      this.text > content.length ||
      this.calls.length > calls.length ||
      this.calls.some((sent, index) => sent > (calls[index]?.function.arguments.length ?? 0));
    if (overshoot) throw new FloeError('engine_error', 'the engine streamed more than its reply holds');
    const open = this.calls.length - 1;
    if (open >= 0) deltas.push(...this.missingArguments(open, calls));
    if (this.reasoning < reasoning.length) deltas.push({ kind: 'reasoning', text: reasoning.slice(this.reasoning) });
    if (this.text < content.length) deltas.push({ kind: 'text', text: content.slice(this.text) });
    for (let index = this.calls.length; index < calls.length; index++) {
      const { id, function: called } = calls[index] as ToolCall;
      deltas.push({ kind: 'call', index, id, name: called.name }, ...this.missingArguments(index, calls));
    }
    return deltas;
  }

  private missingArguments(index: number, calls: readonly ToolCall[]): ReplyDelta[] {
    const text = calls[index]?.function.arguments.slice(this.calls[index] ?? 0) ?? '';
    return text === '' ? [] : [{ kind: 'arguments', index, text }];
  }
}

/** A whole reply as a stream, where nothing of it was relayed. */
export function streamOf(dialect: Dialect, reply: CanonicalReply, request: CanonicalRequest): StreamEnd {
  const stream = dialect.openStream(reply, request);
  let body = stream.start();
  for (const delta of new SentParts().rest(reply.message)) body += stream.delta(delta);
  const { body: close, end } = stream.end(reply);
  return { body: body + close, end };
}
