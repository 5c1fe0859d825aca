// Checks that every test case of the matrix must pass: the task is done, the traces equal the engine's ledger, and no sampled token is
// missing. All functions are pure.
import type { Audit, ChatMessage, CompletionRecord, SessionResult, Trace } from '@floe-rl/core/schema';
import type { LedgerEntry, LedgerMismatch } from '@floe-rl/sim';

/** The fields of a session's result that the checks need. */
export type CheckedResult = Pick<SessionResult, 'outcome' | 'reward'> & {
  readonly error: { readonly code: string; readonly message: string } | null;
  readonly audit: { readonly tokens: Pick<Audit['tokens'], 'sampled' | 'trained' | 'excluded'> } | null;
  readonly trajectory: { readonly traces: readonly Pick<Trace, 'trace_id' | 'completion_ids'>[] } | null;
};

/** The fields of a recorded model call (completion) that the checks need. */
export type CheckedCompletion = Pick<
  CompletionRecord,
  'completion_id' | 'index' | 'call_kind' | 'thread' | 'message' | 'finish_reason' | 'abandoned' | 'undelivered'
> & { readonly request: Pick<CompletionRecord['request'], 'base' | 'keep' | 'messages'> };

/** The fields of a ledger entry of the simulated engine that the checks need. */
export type CheckedEntry = Pick<
  LedgerEntry,
  'request_id' | 'scenario' | 'prompt_ids' | 'response_ids' | 'aborted_at' | 'faults'
>;

export type SessionRecord = {
  readonly result: CheckedResult;
  readonly completions: readonly CheckedCompletion[];
  /** The engine's ledger entries for the calls of this session. */
  readonly entries: readonly CheckedEntry[];
  /** Number of engine calls in which the simulated engine injected a fault. */
  readonly firedFaults: number;
};

/** The expected outcome and reward of a session. */
export type Expectation = { readonly outcome?: string; readonly reward?: number };

/** The data of one session: its result, its recorded completions and the engine's ledger entries. The checks of the test cases read it. */
export class Facts {
  readonly result: CheckedResult;
  readonly entries: readonly CheckedEntry[];
  /** All completions of the session, in the order in which the proxy received the calls. */
  readonly completions: readonly CheckedCompletion[];
  readonly traces: readonly Pick<Trace, 'trace_id' | 'completion_ids'>[];
  readonly firedFaults: number;
  private readonly byId: ReadonlyMap<string, CheckedCompletion>;
  private readonly entryOf: ReadonlyMap<string, CheckedEntry>;

  constructor({ result, completions, entries, firedFaults }: SessionRecord) {
    this.result = result;
    this.entries = entries;
    this.completions = [...completions].sort((a, b) => a.index - b.index);
    this.traces = result.trajectory?.traces ?? [];
    this.firedFaults = firedFaults;
    this.byId = new Map(completions.map((completion) => [completion.completion_id, completion]));
    this.entryOf = new Map(entries.map((entry) => [entry.request_id, entry]));
  }

  /** The completions of the main agent, without side calls and sub-agents, in order of arrival. */
  get main(): readonly CheckedCompletion[] {
    return this.byScenario('main');
  }

  /** Returns the completions that the simulated policy answered from the scenario `name`, in order of arrival. */
  byScenario(name: string): CheckedCompletion[] {
    return this.completions.filter(({ completion_id }) => this.entryOf.get(completion_id)?.scenario === name);
  }

  /**
   * Returns the number of prompt tokens of a completion according to the engine's ledger; 0 when the ledger has no entry for the
   * completion.
   */
  promptTokens({ completion_id }: CheckedCompletion): number {
    return this.entryOf.get(completion_id)?.prompt_ids.length ?? 0;
  }

  /**
   * Returns all messages of a completion's request. A record stores only the messages that it does not share with an earlier record, to
   * which `request.base` refers.
   */
  messages({ request }: CheckedCompletion): ChatMessage[] {
    const base = request.base === null ? undefined : this.byId.get(request.base);
    const kept = base === undefined ? [] : this.messages(base).slice(0, request.keep);
    return [...kept, ...request.messages];
  }
}

/**
 * Returns the tool results of a conversation as JSON text. Tool calls are left out: their commands contain the words that a check searches
 * for in the output, so that the check would always find them.
 */
export function toolResults(messages: readonly ChatMessage[]): string[] {
  return messages.filter(({ role }) => role === 'tool').map(({ content }) => JSON.stringify(content));
}

/** Checks that the session ended with the expected outcome and reward. */
export function taskProblems({ result }: Facts, { outcome = 'completed', reward = 1 }: Expectation = {}): string[] {
  const problems: string[] = [];
  if (result.outcome !== outcome) {
    const why = result.error === null ? '' : `: ${result.error.code}: ${result.error.message}`;
    problems.push(`outcome ${result.outcome} instead of ${outcome}${why}`);
  }
  if (result.reward !== reward) problems.push(`reward ${result.reward} instead of ${reward}`);
  return problems;
}

/**
 * Checks that every token in the engine's ledger is trained or excluded with a reason. Calls that were aborted before their reply was
 * delivered are not checked.
 */
export function accountProblems({ result, completions, entries }: Facts): string[] {
  const { audit } = result;
  if (audit === null) return entries.length === 0 ? [] : ['there is no audit'];
  const recorded = new Set(completions.map(({ completion_id }) => completion_id));
  const sampledBy = new Map(entries.map((entry) => [entry.request_id, entry.response_ids.length]));
  const unrecorded = entries
    .filter((entry) => !recorded.has(entry.request_id) && entry.aborted_at === null)
    .map(
      ({ request_id, response_ids }) =>
        `the engine sampled ${response_ids.length} tokens for ${request_id}, which floe did not record`,
    );
  const unsampled = [...recorded]
    .filter((id) => !sampledBy.has(id))
    .map((id) => `${id} is recorded, and the engine never sampled it`);
  const problems = [...unrecorded, ...unsampled];
  const sampled = [...recorded].reduce((sum, id) => sum + (sampledBy.get(id) ?? 0), 0);
  const excluded = Object.values(audit.tokens.excluded).reduce((sum, count) => sum + count, 0);
  if (audit.tokens.sampled !== sampled) {
    problems.push(`the audit has ${audit.tokens.sampled} sampled tokens, the ledger ${sampled}`);
  }
  if (audit.tokens.trained + excluded !== sampled) {
    problems.push(`${audit.tokens.trained} trained and ${excluded} excluded tokens are not the ${sampled} sampled`);
  }
  return problems;
}

/**
 * Checks that side calls of the harness, such as requests for a title, are not labelled as calls of the agent. floe would train on them
 * otherwise.
 */
export function labelProblems(facts: Facts): string[] {
  return facts
    .byScenario('side')
    .filter(({ call_kind }) => call_kind === 'main' || call_kind === 'subagent')
    .map(({ completion_id, call_kind }) => `${completion_id} is a side call of the harness and labelled ${call_kind}`);
}

/** Names of the scenarios that answer the agent's own calls, in contrast to side calls of the harness. */
const WORK = ['main', 'subagent', 'compaction'];

/**
 * Checks that every reply to a call of the agent (not to a side call of the harness) is part of a trace. Replies that the harness abandoned or
 * did not receive are excepted. {@link accountProblems} does not check this, because it accepts any token that is excluded from training.
 */
export function workProblems(facts: Facts): string[] {
  const traced = new Set(facts.traces.flatMap(({ completion_ids }) => completion_ids));
  return WORK.flatMap((name) => facts.byScenario(name))
    .filter(({ completion_id, abandoned, undelivered }) => !abandoned && !undelivered && !traced.has(completion_id))
    .map(({ completion_id, call_kind }) => `${completion_id} (${call_kind}) is the agent's work and in no trace`);
}

export function mismatchProblems(mismatches: readonly LedgerMismatch[]): string[] {
  return mismatches.map(({ completion_id, what, detail }) => `ledger: ${completion_id ?? 'trace'}: ${what}: ${detail}`);
}
