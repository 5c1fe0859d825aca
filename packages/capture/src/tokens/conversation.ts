import type { ChatMessage } from '@floe-rl/core/schema';
import type { Completion } from './completion.ts';
import type { GraphNode } from './graph.ts';
import { endOfTurn, identicalMessages } from './same-turn.ts';

/**
 * Returns the conversation of the main agent: the messages of its last model call, followed by the reply. Calls that are not the agent's own
 * work are ignored, and so are calls whose reply the agent did not use or receive. Empty when no call is left.
 */
export function conversationOf(completions: readonly Completion[]): readonly ChatMessage[] {
  let last: Completion | null = null;
  for (const completion of completions) {
    const { callKind, auxiliary, abandoned, undelivered, index } = completion;
    if (callKind !== 'main' || auxiliary || abandoned || undelivered) continue;
    if (last === null || index > last.index) last = completion;
  }
  return last === null ? [] : [...last.request.messages, last.message];
}

/** Returns the messages of a trace's response: each reply, followed by the messages that the next request has after this reply. */
export function responseMessages(nodes: readonly GraphNode[]): ChatMessage[] {
  const responses: ChatMessage[] = [];
  let previous: Completion | null = null;
  for (const { completion } of nodes) {
    if (previous !== null) {
      const { messages } = completion.request;
      responses.push(previous.message, ...messages.slice(endOfTurn(messages, previous.request.messages.length)));
    }
    previous = completion;
  }
  if (previous !== null) responses.push(previous.message);
  return responses;
}

/** Returns the elements of {@link responseMessages} as JSON texts. */
export function responseTexts(nodes: readonly GraphNode[]): string[] {
  const texts: string[] = [];
  let previous: Completion | null = null;
  for (const { completion } of nodes) {
    const { messages, messageTexts } = completion.request;
    if (previous !== null) {
      const replyAt = previous.request.messages.length;
      const returned = messages[replyAt];
      // Most harnesses return a reply unchanged. Its JSON text from the next request is then reused, because encoding a reply takes as long
      // as writing all token ids.
      const same = returned?.role === 'assistant' && identicalMessages(returned, previous.message);
      texts.push(same ? (messageTexts[replyAt] as string) : JSON.stringify(previous.message));
      for (let at = endOfTurn(messages, replyAt); at < messageTexts.length; at++)
        texts.push(messageTexts[at] as string);
    }
    previous = completion;
  }
  if (previous !== null) texts.push(JSON.stringify(previous.message));
  return texts;
}
