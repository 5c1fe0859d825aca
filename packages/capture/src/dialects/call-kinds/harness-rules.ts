import type { CallKind, CallRules } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { Headers } from '../dialect.ts';
import { MAIN_THREAD, type PromptView } from './prompt-view.ts';

/**
 * The facts that the headers of a model call state about the agent that makes the call and about the purpose of the call.
 */
export type HeaderFacts = {
  /** The agent that makes the call; `null` when the headers do not identify it, so that the prompt decides. */
  readonly agent: { readonly kind: 'main' } | { readonly kind: 'subagent'; readonly id: string | null } | null;
  /** Purpose of the model call; `null` for ordinary work on the task, or when the headers do not state it. */
  readonly purpose: CallKind | null;
  /** Pool of engines that the agent names for the call. Absent when the agent names no pool. */
  readonly enginePool?: string;
};

/**
 * Rules that classify the model calls of one harness. They apply only to sessions of that harness. All functions are pure and never throw.
 * Each must be narrow enough that no ordinary call of the harness's agents matches it.
 */
export type HarnessRules = {
  /** Interprets the headers of a model call; `null` when this harness did not send them. */
  readonly headers?: (headers: Headers) => HeaderFacts | null;
  /**
   * Determines the purpose of a model call from its prompt; `null` for ordinary work on the task.
   */
  readonly purpose?: (call: PromptView) => CallKind | null;
  /** Whether a sub-agent sent the prompt. */
  readonly subagent?: (call: PromptView) => boolean;
  /**
   * Set when the harness repeats a request because it cannot use the reply, for example an empty reply, and neither a header nor a closed
   * connection shows the repetition. Such a harness never requests two samples of one prompt on purpose.
   */
  readonly resendsUnusedReplies?: true;
};

/** Returns the first value of a header; `null` when it is missing or empty. A sandboxed agent may send a header several times. */
export function headerOf(headers: Headers, name: string): string | null {
  const value = headers[name];
  const first = Array.isArray(value) ? value[0] : value;
  return first === undefined || first === '' ? null : first;
}

/**
 * Matches Claude Code's request for a summary: of the whole conversation, of its recent part, or of the earlier conversation that a session
 * continues.
 */
const CLAUDE_SUMMARY_REQUEST =
  /(?:^|\n)Your task is to create a detailed summary of (?:the conversation so far|the RECENT portion of the conversation|this conversation)/;
/** Tag in which the model must write the summary, in every version of Claude Code's summary request. */
const CLAUDE_SUMMARY_TAG = '<summary>';

/**
 * Rules for Claude Code, which names a sub-agent in a header. A summary request repeats the system prompt, tools and messages of the
 * previous request and adds one user text. When a sub-agent sends the summary request, the request also has this header. Older versions
 * request a title when they start.
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

/** Whether the model call requests a JSON object with `title` as its only field. Claude Code and Qwen Code request titles in this way. */
function isTitleRequest(call: PromptView): boolean {
  return call.requestsFields('title') && !call.hasReply();
}

/**
 * Longest metadata header of Codex that is parsed, in characters. A real header has about 1,000 characters, but a sandboxed agent could
 * send any number.
 */
const MAX_CODEX_METADATA_CHARS = 16_384;
const codexMetadataSchema = z.looseObject({
  request_kind: z.string().optional(),
  thread_source: z.string().optional(),
  thread_id: z.string().optional(),
});
type CodexMetadata = z.output<typeof codexMetadataSchema>;

/**
 * Values of `request_kind` that Codex gives to model calls with a special purpose, and the call kind of each. All other values, such as values
 * of later versions, count as work on the task.
 */
const CODEX_REQUEST_KINDS: Readonly<Record<string, CallKind>> = { compaction: 'compaction', prewarm: 'probe' };

/** Sub-agents of Codex that manage its context and its memory, and the kind of their model calls. All other sub-agents work on the task. */
const CODEX_SUBAGENT_KINDS: Readonly<Record<string, CallKind>> = {
  compact: 'compaction',
  memory_consolidation: 'memory',
};

const CODEX_SUMMARY_REQUEST = 'You are performing a CONTEXT CHECKPOINT COMPACTION.';

/**
 * Rules for Codex, which states the thread, the parent thread and the purpose of every call in headers. The prompt decides only when these
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
    // Codex sends JSON in this header. A value that is not JSON was not written by Codex and is ignored.
    return null;
  }
}

function kindNamed(kinds: Readonly<Record<string, CallKind>>, name: string | null | undefined): CallKind | null {
  return name != null && Object.hasOwn(kinds, name) ? (kinds[name] ?? null) : null;
}

const OPENCODE_TITLE_PROMPT = 'You are a title generator. You output ONLY a thread title.';
const OPENCODE_SUMMARY_PROMPT = 'You are a context summarization agent.';

/**
 * Rules for opencode, which runs each sub-agent in a separate session and names the parent session in a header. Its summary requests lack
 * this header, so the summary of a sub-agent counts as a call of the main agent.
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

/** Rules for Copilot CLI, which marks the calls of sub-agents by a header that does not identify the sub-agent. */
const copilotCli: HarnessRules = {
  headers(headers) {
    if (headerOf(headers, 'x-interaction-type') !== 'conversation-subagent') return null;
    return { agent: { kind: 'subagent', id: null }, purpose: null };
  },
};

/** Name of the tool that Gemini CLI's sub-agents call to end their work. */
const GEMINI_SUBAGENT_TOOL = 'complete_task';
/** Text that the system prompt of every sub-agent of Gemini CLI contains. */
const GEMINI_SUBAGENT_MARK = 'ONLY way to complete your mission';

const GEMINI_SNAPSHOT_PROMPT = 'You are a specialized system component responsible for distilling chat history';
/** Tag around the summary that Gemini CLI and its fork Qwen Code request. */
const SNAPSHOT_TAG = '<state_snapshot>';

/**
 * Fields of the JSON objects that Gemini CLI requests from the model to decide who speaks next, whether the agent is in a loop, and which
 * model to call.
 */
const GEMINI_ROUTING_FIELDS = [
  ['reasoning', 'next_speaker'],
  ['unproductive_state_analysis', 'unproductive_state_confidence'],
  ['reasoning', 'model_choice'],
  ['complexity_reasoning', 'complexity_score'],
] as const;

/** Rules for Gemini CLI, which sends no headers that identify the agent or the purpose of a call. */
const geminiCli: HarnessRules = {
  purpose(call) {
    if (isRoutingRequest(call)) return 'routing';
    const isSnapshot = call.toolCount === 0 && call.system.trimStart().startsWith(GEMINI_SNAPSHOT_PROMPT);
    return isSnapshot && call.system.includes(SNAPSHOT_TAG) ? 'compaction' : null;
  },
  subagent(call) {
    return call.hasTool(GEMINI_SUBAGENT_TOOL) && call.system.includes(GEMINI_SUBAGENT_MARK);
  },
  // Gemini CLI repeats a request when the reply reached the token limit before any text, or had no finish reason.
  resendsUnusedReplies: true,
};

function isRoutingRequest(call: PromptView): boolean {
  return GEMINI_ROUTING_FIELDS.some((fields) => call.requestsFields(...fields));
}

/** Text that the system prompt of every sub-agent of Qwen Code contains. */
const QWEN_SUBAGENT_MARK = 'return the final result as a normal model response (not a tool call) and stop';

const QWEN_SUMMARY_PROMPT =
  'You are the component that summarizes a conversation when its context window is about to overflow.';

/** First words of the system prompts of Qwen Code's agents that write memories for later sessions. */
const QWEN_MEMORY_PROMPTS = [
  'You are now acting as the managed memory extraction subagent',
  'You are performing a managed memory dream',
] as const;

/**
 * Rules for Qwen Code, which sends no headers that identify the agent or the purpose of a call. Its summary request has one of two forms.
 * If the model's provider caches prompts, the request continues the conversation with the same system prompt and tools. Otherwise the
 * request has no tools, and a summary prompt replaces the system prompt. Qwen Code is a fork of Gemini CLI and requests the same JSON
 * objects.
 */
const qwenCode: HarnessRules = {
  purpose(call) {
    if (isQwenMemory(call)) return 'memory';
    if (isTitleRequest(call)) return 'title';
    if (isRoutingRequest(call)) return 'routing';
    const instructions = call.toolCount === 0 ? call.system : call.lastUserText();
    const isSummary = instructions.trimStart().startsWith(QWEN_SUMMARY_PROMPT);
    return isSummary && call.lastUserText().includes(SNAPSHOT_TAG) ? 'compaction' : null;
  },
  subagent(call) {
    return call.system.includes(QWEN_SUBAGENT_MARK) || isQwenMemory(call);
  },
  // Qwen Code repeats its request after an empty reply, and after a reply with malformed tool calls or stray tags of its protocol.
  resendsUnusedReplies: true,
};

function isQwenMemory(call: PromptView): boolean {
  return QWEN_MEMORY_PROMPTS.some((prompt) => call.system.startsWith(prompt));
}

const PI_SUMMARY_PROMPT = 'You are a context summarization assistant.';

/**
 * Rules for pi, which has no sub-agents. It requests a summary of the conversation, or of the beginning of a long one, in a request with
 * one user message.
 */
const pi: HarnessRules = {
  purpose(call) {
    const isSummary = call.toolCount === 0 && !call.hasReply() && call.system.startsWith(PI_SUMMARY_PROMPT);
    return isSummary ? 'compaction' : null;
  },
};

/**
 * Rules for the agents of floe, which name the thread of every call in the header `x-floe-thread`. A call whose reply is not to be trained has
 * the header `x-floe-kind: untrained`. The header `x-floe-engine-pool` may name one of the task's pools of engines.
 */
const floe: HarnessRules = {
  headers(headers) {
    const thread = headerOf(headers, 'x-floe-thread');
    const purpose = headerOf(headers, 'x-floe-kind') === 'untrained' ? 'untrained' : null;
    const isMain = thread === null || thread === MAIN_THREAD;
    const enginePool = headerOf(headers, 'x-floe-engine-pool');
    const agent = isMain ? ({ kind: 'main' } as const) : ({ kind: 'subagent', id: thread } as const);
    return { agent, purpose, ...(enginePool === null ? {} : { enginePool }) };
  },
};

/** The rules of every harness with classified model calls. */
export const HARNESS_RULES: Readonly<Record<CallRules, HarnessRules>> = {
  claude_code: claudeCode,
  codex,
  copilot_cli: copilotCli,
  floe,
  gemini_cli: geminiCli,
  opencode,
  pi,
  qwen_code: qwenCode,
};
