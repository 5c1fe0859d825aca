import { createHash } from 'node:crypto';
import type { ChatMessage, ChatTool } from '../schema/index.ts';

// What Gemini CLI and Qwen Code send no header for, and what tells it all the same.

/** With it, and with nothing else, a sub-agent of Gemini CLI ends its work. */
const SUBAGENT_TOOL = 'complete_task';

/** What Qwen Code tells every sub-agent, of whichever kind. */
const SUBAGENT_MARK = 'return the final result as a normal model response (not a tool call) and stop';

/** The form in which both ask for a summary when they compact. */
const SNAPSHOT_MARK = '<state_snapshot>';

/** Enough of a digest to tell the sub-agents of one session apart. */
const THREAD_DIGITS = 12;

type Prompt = { readonly messages: readonly ChatMessage[]; readonly tools: readonly ChatTool[] };

/**
 * The thread of a sub-agent whose prompt says that it is one; null: none does. It is named by the first message, which a
 * sub-agent sends with each request and shares with another one only when both have the same task.
 */
export function promptSubagent({ messages, tools }: Prompt): string | null {
  const named = tools.some((tool) => tool.function.name === SUBAGENT_TOOL);
  if (!named && !systemText(messages).includes(SUBAGENT_MARK)) return null;
  const first = messages.find(({ role }) => role === 'user');
  const digest = createHash('sha256').update(JSON.stringify(first?.content ?? ''));
  return `subagent-${digest.digest('hex').slice(0, THREAD_DIGITS)}`;
}

/** Whether the system prompt of a request without tools asks for a summary of the conversation. */
export function promptAsksForSnapshot({ messages, tools }: Prompt): boolean {
  return tools.length === 0 && systemText(messages).includes(SNAPSHOT_MARK);
}

function systemText(messages: readonly ChatMessage[]): string {
  const first = messages[0];
  return first?.role === 'system' && typeof first.content === 'string' ? first.content : '';
}
