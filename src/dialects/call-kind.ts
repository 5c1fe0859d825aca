import { z } from 'zod';
import type { CallKind, ChatMessage, ChatTool, ResponseFormat } from '../schema/index.ts';
import type { Headers } from './dialect.ts';

export type CallLabel = { readonly thread: string; readonly callKind: CallKind };

/** What a request's label is told from. */
export type CallShape = {
  readonly headers: Headers;
  readonly messages: readonly ChatMessage[];
  readonly tools: readonly ChatTool[];
  readonly responseFormat: ResponseFormat | undefined;
};

/** Longest agent thread name that is kept: names come from a header that the sandboxed agent controls. */
const MAX_THREAD_CHARS = 128;

/**
 * Which agent thread a request belongs to and what it is for.
 *
 * Headers decide where a harness sends them: Claude Code names the sub-agent, opencode gives a sub-agent a session of its
 * own with a parent, Copilot CLI only says that it is one. Otherwise a request without tools that asks for a JSON object with
 * a `title` is a title call. Everything else is `main`: a wrong `main` costs a sample, a wrong auxiliary label loses one.
 */
export function labelCall({ headers, tools, responseFormat }: CallShape): CallLabel {
  const agent = header(headers, 'x-claude-code-agent-id');
  if (agent !== null) return { thread: agent, callKind: 'subagent' };
  if (header(headers, 'x-parent-session-id') !== null) {
    return { thread: header(headers, 'x-session-id') ?? 'subagent', callKind: 'subagent' };
  }
  if (header(headers, 'x-interaction-type') === 'conversation-subagent') {
    return { thread: 'subagent', callKind: 'subagent' };
  }
  if (tools.length === 0 && asksForTitle(responseFormat)) return { thread: 'main', callKind: 'title' };
  return { thread: 'main', callKind: 'main' };
}

/** Two requests with the same body but different values here come from different agent threads. */
export function threadKeyOf(headers: Headers): string {
  return `${header(headers, 'x-claude-code-agent-id') ?? ''}\n${header(headers, 'x-session-id') ?? ''}`;
}

const titleSchema = z.looseObject({ properties: z.looseObject({ title: z.looseObject({}) }) });

function asksForTitle(format: ResponseFormat | undefined): boolean {
  return format?.type === 'json_schema' && titleSchema.safeParse(format.json_schema.schema).success;
}

function header(headers: Headers, name: string): string | null {
  const value = headers[name];
  const first = Array.isArray(value) ? value[0] : value;
  return first === undefined || first === '' ? null : first.slice(0, MAX_THREAD_CHARS);
}
