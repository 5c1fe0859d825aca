import { z } from 'zod';
import type { CallKind, ChatMessage, ChatTool, ResponseFormat } from '../schema/index.ts';
import type { Headers } from './dialect.ts';
import { promptAsksForSnapshot, promptSubagent } from './prompt-labels.ts';

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

/** What Codex says of each call in one header; it is about a kilobyte, and an agent could send any size. */
const MAX_METADATA_CHARS = 16_384;
const codexMetadataSchema = z.looseObject({ request_kind: z.string(), thread_source: z.string().optional() });

/** How harnesses without a header for it ask for a summary of the conversation, in its last user message. */
const SUMMARY_REQUESTS = [
  // Claude Code.
  'Your task is to create a detailed summary of the conversation so far',
];

/**
 * Which agent thread a request belongs to and what it is for.
 *
 * Headers decide where a harness sends them: Claude Code names the sub-agent, Codex thread and purpose of every call, opencode
 * gives a sub-agent a session of its own with a parent, Copilot CLI only says that it is one. Otherwise a request whose last
 * message asks for a summary in the words of a harness is a compaction, and one without tools that asks for a JSON object with
 * a `title` a title call; two harnesses are told by their prompts alone. Everything else is `main`: a wrong `main` costs a
 * sample, a wrong auxiliary label loses one.
 */
export function labelCall(shape: CallShape): CallLabel {
  const thread = subagentOf(shape.headers) ?? promptSubagent(shape);
  if (asksForSummary(shape) || promptAsksForSnapshot(shape)) return { thread: thread ?? 'main', callKind: 'compaction' };
  if (thread !== null) return { thread, callKind: 'subagent' };
  if (shape.tools.length === 0 && asksForTitle(shape.responseFormat)) return { thread: 'main', callKind: 'title' };
  return { thread: 'main', callKind: 'main' };
}

/** The thread of a sub-agent; null: the main agent's, or not told. */
function subagentOf(headers: Headers): string | null {
  const agent = header(headers, 'x-claude-code-agent-id');
  if (agent !== null) return agent;
  if (header(headers, 'x-openai-subagent') !== null || codexMetadata(headers)?.thread_source === 'subagent') {
    return header(headers, 'thread-id') ?? 'subagent';
  }
  if (header(headers, 'x-parent-session-id') !== null) return header(headers, 'x-session-id') ?? 'subagent';
  return header(headers, 'x-interaction-type') === 'conversation-subagent' ? 'subagent' : null;
}

/** Two requests with the same body but different values here come from different agent threads. */
export function threadKeyOf(headers: Headers): string {
  return ['x-claude-code-agent-id', 'x-session-id', 'thread-id'].map((name) => header(headers, name) ?? '').join('\n');
}

function asksForSummary({ headers, messages }: CallShape): boolean {
  if (codexMetadata(headers)?.request_kind === 'compaction') return true;
  const last = messages.at(-1);
  if (last?.role !== 'user') return false;
  const texts =
    typeof last.content === 'string'
      ? [last.content]
      : last.content.flatMap((part) => (part.type === 'text' ? [part.text] : []));
  return texts.some((text) => SUMMARY_REQUESTS.some((words) => text.includes(words)));
}

function codexMetadata(headers: Headers): z.output<typeof codexMetadataSchema> | null {
  const text = headers['x-codex-turn-metadata'];
  if (typeof text !== 'string' || text.length > MAX_METADATA_CHARS) return null;
  try {
    return codexMetadataSchema.safeParse(JSON.parse(text)).data ?? null;
  } catch {
    // Not Codex's: whoever wrote it gets no label by it.
    return null;
  }
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
