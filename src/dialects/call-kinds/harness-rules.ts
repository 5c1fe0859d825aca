import { z } from 'zod';
import type { CallKind } from '../../schema/index.ts';
import type { Headers } from '../dialect.ts';
import type { PromptView } from './prompt-view.ts';

/** What the headers of a call state about its agent and its purpose. */
export type HeaderFacts = {
  /** The agent that makes the call; `null` when the headers do not name it, so that the prompt decides. */
  readonly agent: { readonly kind: 'main' } | { readonly kind: 'subagent'; readonly id: string | null } | null;
  /** Purpose of the call; `null` for the agent's own work, or when the headers do not state it. */
  readonly purpose: CallKind | null;
};

/**
 * Rules that classify the calls of one harness and of its forks. All functions are pure and never throw. Each must be narrow enough that
 * no other harness's call matches it: the harnesses are tried in order, and the first match counts.
 */
export type HarnessRules = {
  /** Reads the headers of a call; `null` when they are not those of this harness. */
  readonly headers?: (headers: Headers) => HeaderFacts | null;
  /** Determines the purpose from the prompt; `null` for the agent's own work, or when the prompt is another harness's. */
  readonly purpose?: (call: PromptView) => CallKind | null;
  /** Whether the prompt is that of a sub-agent of this harness. */
  readonly subagent?: (call: PromptView) => boolean;
};

/** Returns the first value of a header; `null` when it is missing or empty. A sandboxed agent may send a header several times. */
export function headerOf(headers: Headers, name: string): string | null {
  const value = headers[name];
  const first = Array.isArray(value) ? value[0] : value;
  return first === undefined || first === '' ? null : first;
}

/**
 * Matches Claude Code's request for a summary: of the whole conversation, of its recent part, or of the conversation that a session
 * continues.
 */
const CLAUDE_SUMMARY_REQUEST =
  /(?:^|\n)Your task is to create a detailed summary of (?:the conversation so far|the RECENT portion of the conversation|this conversation)/;
/** Tag that every form of Claude Code's summary request requires around the answer. */
const CLAUDE_SUMMARY_TAG = '<summary>';

/**
 * Rules for Claude Code. It names the sub-agent in a header. A summary request has the system prompt, tools and messages of the request
 * before it, plus one user text; a sub-agent's summary request also has the header. Older versions request a title when they start.
 */
const claudeCode: HarnessRules = {
  headers(headers) {
    const id = headerOf(headers, 'x-claude-code-agent-id');
    return id === null ? null : { agent: { kind: 'subagent', id }, purpose: null };
  },
  purpose(call) {
    if (isTitleRequest(call)) return 'title';
    const text = call.lastUserText();
    return text.includes(CLAUDE_SUMMARY_TAG) && CLAUDE_SUMMARY_REQUEST.test(text) ? 'compaction' : null;
  },
};

/** Whether the call requests an object with only a title. Other harnesses request titles in the same way. */
function isTitleRequest(call: PromptView): boolean {
  return call.requestsFields('title') && !call.hasReply();
}

/** Longest metadata header of Codex that is parsed. The real header has about a kilobyte, but a sandboxed agent could send any size. */
const MAX_CODEX_METADATA_CHARS = 16_384;
const codexMetadataSchema = z.looseObject({
  request_kind: z.string().optional(),
  thread_source: z.string().optional(),
  thread_id: z.string().optional(),
});
type CodexMetadata = z.output<typeof codexMetadataSchema>;

/**
 * Codex's `request_kind`s that are not the agent's own work. Kinds that are not listed, such as those of later versions, count as the
 * agent's work.
 */
const CODEX_REQUEST_KINDS: Readonly<Record<string, CallKind>> = { compaction: 'compaction', prewarm: 'probe' };

/** Codex's sub-agents that serve the program itself. All other sub-agents work on the task. */
const CODEX_SUBAGENT_KINDS: Readonly<Record<string, CallKind>> = {
  compact: 'compaction',
  memory_consolidation: 'memory',
};

const CODEX_SUMMARY_REQUEST = 'You are performing a CONTEXT CHECKPOINT COMPACTION.';

/**
 * Rules for Codex. It sends the thread, the parent thread and the purpose of every call in headers. The prompt decides only when these
 * headers are missing.
 */
const codex: HarnessRules = {
  headers(headers) {
    const metadata = codexMetadataOf(headers);
    const subagent = headerOf(headers, 'x-openai-subagent');
    const parent = headerOf(headers, 'x-codex-parent-thread-id');
    if (metadata === null && subagent === null && parent === null) return null;
    const purpose =
      kindNamed(CODEX_REQUEST_KINDS, metadata?.request_kind) ??
      kindNamed(CODEX_SUBAGENT_KINDS, subagent) ??
      (headerOf(headers, 'x-openai-memgen-request') === 'true' ? 'memory' : null);
    if (subagent !== null || parent !== null || metadata?.thread_source === 'subagent') {
      const id = headerOf(headers, 'thread-id') ?? metadata?.thread_id ?? null;
      return { agent: { kind: 'subagent', id: id === '' ? null : id }, purpose };
    }
    return { agent: metadata?.thread_source === undefined ? null : { kind: 'main' }, purpose };
  },
  purpose(call) {
    return call.toolCount === 0 && call.lastUserText().startsWith(CODEX_SUMMARY_REQUEST) ? 'compaction' : null;
  },
};

function codexMetadataOf(headers: Headers): CodexMetadata | null {
  const text = headerOf(headers, 'x-codex-turn-metadata');
  if (text === null || text.length > MAX_CODEX_METADATA_CHARS) return null;
  try {
    return codexMetadataSchema.safeParse(JSON.parse(text)).data ?? null;
  } catch {
    // Codex sends JSON; a header that is not JSON was written by something else and is ignored.
    return null;
  }
}

function kindNamed(kinds: Readonly<Record<string, CallKind>>, name: string | null | undefined): CallKind | null {
  return name != null && Object.hasOwn(kinds, name) ? (kinds[name] ?? null) : null;
}

const OPENCODE_TITLE_PROMPT = 'You are a title generator. You output ONLY a thread title.';
const OPENCODE_SUMMARY_PROMPT = 'You are a context summarization agent.';

/**
 * Rules for opencode. It runs each sub-agent in a separate session and names the parent session in a header. Its summary requests name
 * no parent, so a sub-agent's summary counts as the main agent's.
 */
const opencode: HarnessRules = {
  headers(headers) {
    if (headerOf(headers, 'x-parent-session-id') === null) return null;
    return { agent: { kind: 'subagent', id: headerOf(headers, 'x-session-id') }, purpose: null };
  },
  purpose(call) {
    if (call.toolCount > 0 || call.hasReply()) return null;
    if (call.system.startsWith(OPENCODE_TITLE_PROMPT)) return 'title';
    return call.system.startsWith(OPENCODE_SUMMARY_PROMPT) ? 'compaction' : null;
  },
};

/** Rules for Copilot CLI. It marks a sub-agent's call in a header that does not identify the sub-agent. */
const copilotCli: HarnessRules = {
  headers(headers) {
    if (headerOf(headers, 'x-interaction-type') !== 'conversation-subagent') return null;
    return { agent: { kind: 'subagent', id: null }, purpose: null };
  },
};

/** Tool with which Gemini CLI's sub-agents end their work. */
const GEMINI_SUBAGENT_TOOL = 'complete_task';
/** Sentence that the system prompt of every sub-agent of Gemini CLI contains. */
const GEMINI_SUBAGENT_MARK = 'ONLY way to complete your mission';

const GEMINI_SNAPSHOT_PROMPT = 'You are a specialized system component responsible for distilling chat history';
/** Tag around the summary that Gemini CLI and its fork Qwen Code request. */
const SNAPSHOT_TAG = '<state_snapshot>';

/** Fields of the JSON replies with which Gemini CLI decides which side speaks next, whether the agent loops, and which model to call. */
const GEMINI_ROUTING_FIELDS = [
  ['reasoning', 'next_speaker'],
  ['unproductive_state_analysis', 'unproductive_state_confidence'],
  ['reasoning', 'model_choice'],
  ['complexity_reasoning', 'complexity_score'],
] as const;

/** Rules for Gemini CLI, which sends no headers that identify the agent or the purpose of a call. */
const geminiCli: HarnessRules = {
  purpose(call) {
    if (GEMINI_ROUTING_FIELDS.some((fields) => call.requestsFields(...fields))) return 'routing';
    const isSnapshot = call.toolCount === 0 && call.system.trimStart().startsWith(GEMINI_SNAPSHOT_PROMPT);
    return isSnapshot && call.system.includes(SNAPSHOT_TAG) ? 'compaction' : null;
  },
  subagent(call) {
    return call.hasTool(GEMINI_SUBAGENT_TOOL) && call.system.includes(GEMINI_SUBAGENT_MARK);
  },
};

/** Sentence that the system prompt of every Qwen Code sub-agent contains. */
const QWEN_SUBAGENT_MARK = 'return the final result as a normal model response (not a tool call) and stop';

const QWEN_SUMMARY_PROMPT =
  'You are the component that summarizes a conversation when its context window is about to overflow.';

/** First words of the system prompts of Qwen Code's agents that write memories for later sessions. */
const QWEN_MEMORY_PROMPTS = [
  'You are now acting as the managed memory extraction subagent',
  'You are performing a managed memory dream',
] as const;

/**
 * Rules for Qwen Code, which sends no headers that identify the agent or the purpose of a call. It requests a summary in two ways: after
 * the conversation, with the agent's own prompt and tools, if the vendor caches prompts; otherwise without tools and with a summary
 * prompt as system text. Its JSON requests are those of Gemini CLI, of which it is a fork.
 */
const qwenCode: HarnessRules = {
  purpose(call) {
    if (isQwenMemory(call)) return 'memory';
    const instructions = call.toolCount === 0 ? call.system : call.lastUserText();
    const isSummary = instructions.trimStart().startsWith(QWEN_SUMMARY_PROMPT);
    return isSummary && call.lastUserText().includes(SNAPSHOT_TAG) ? 'compaction' : null;
  },
  subagent(call) {
    return call.system.includes(QWEN_SUBAGENT_MARK) || isQwenMemory(call);
  },
};

function isQwenMemory(call: PromptView): boolean {
  return QWEN_MEMORY_PROMPTS.some((prompt) => call.system.startsWith(prompt));
}

const PI_SUMMARY_PROMPT = 'You are a context summarization assistant.';

/**
 * Rules for pi, which has no sub-agents. It summarises the conversation, or the beginning of a long one, in a request with one user
 * message.
 */
const pi: HarnessRules = {
  purpose(call) {
    const isSummary = call.toolCount === 0 && !call.hasReply() && call.system.startsWith(PI_SUMMARY_PROMPT);
    return isSummary ? 'compaction' : null;
  },
};

/** The rules of every harness whose calls are classified, in the order in which they are tried. */
export const HARNESS_RULES: readonly HarnessRules[] = [
  claudeCode,
  codex,
  opencode,
  copilotCli,
  geminiCli,
  qwenCode,
  pi,
];
