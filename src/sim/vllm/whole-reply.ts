import type { CallHead } from '../call-head.ts';
import type { ParsedMessage } from '../chat-reply.ts';
import type { Exchange } from '../http.ts';
import { type FinishEvent, SampledCall, type SampledChoice } from '../sampled-call.ts';
import { chatParser, chatTask } from './chat-task.ts';
import type { VllmContext } from './context.ts';
import type { ChatRequest } from './request.ts';

export type WholeReply = {
  readonly call: SampledCall;
  readonly choice: SampledChoice;
  readonly message: ParsedMessage;
  /** Null: the client went away. */
  readonly finish: FinishEvent | null;
};

/** Samples one reply to a chat request for a route that tells neither ids nor logprobs. Throws as {@link chatTask}. */
export async function wholeReply(
  exchange: Exchange,
  context: VllmContext,
  parts: {
    readonly request: ChatRequest;
    readonly head: CallHead;
    readonly endpoint: string;
    /** What new tool-call ids begin with. */
    readonly callPrefix: string;
  },
): Promise<WholeReply> {
  const { request, head, endpoint } = parts;
  const { promptIds, params } = chatTask(context, request);
  const repeats = head.plan.has('duplicate_call_ids');
  const newCallId = context.callIds.forReply(head.sessionId, repeats, parts.callPrefix);
  const parser = chatParser(context, request, newCallId);
  const shape = { head, endpoint, promptForm: 'messages', stream: false, topCount: 0 } as const;
  const call = new SampledCall(exchange, context, { ...shape, cacheSalt: request.cache_salt });
  const choice = call.newChoice(promptIds, params, 0);
  let finish: FinishEvent | null = null;
  for await (const event of call.events(choice)) {
    if (event.kind === 'start') continue;
    parser.push(event.pieces);
    if (event.kind === 'finish') finish = event;
  }
  return { call, choice, message: parser.parsed, finish };
}
