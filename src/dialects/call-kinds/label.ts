import type { CallKind } from '../../schema/index.ts';
import type { Headers } from '../dialect.ts';
import { HARNESS_RULES, type HarnessRules, type HeaderFacts, headerOf } from './harness-rules.ts';
import { MAIN_THREAD, type Prompt, PromptView, threadOfId } from './prompt-view.ts';

type CallLabel = { readonly thread: string; readonly callKind: CallKind };

/** The parts of a request that decide its thread and its purpose. */
type LabelInput = Prompt & { readonly headers: Headers };

/** Headers that identify one run of a harness. They are needed because an agent may start its harness twice with the same prompt. */
const SESSION_HEADERS = ['x-claude-code-session-id', 'x-session-id', 'session-id', 'session_id'] as const;

/**
 * Determines which agent thread a request belongs to and what its purpose is. Headers decide where the harness sends them. Otherwise the
 * prompt decides, by its tools, the requested JSON schema and the wording of the harness's own requests. The main agent's thread is
 * `main`, including its summaries. An unknown request counts as the main agent's: a wrong `main` label adds a useless sample, whereas a
 * wrong auxiliary label loses a good one.
 */
export function labelCall({ headers, ...prompt }: LabelInput): CallLabel {
  const facts = factsOf(headers);
  const call = new PromptView(prompt);
  const purpose = facts.purpose ?? firstMatch((rules) => rules.purpose?.(call) ?? null);
  const agent = facts.agent ?? { kind: isSubagent(call) ? 'subagent' : 'main', id: null };
  if (agent.kind === 'main') return { thread: MAIN_THREAD, callKind: purpose ?? 'main' };
  return { thread: agent.id === null ? call.threadName() : threadOfId(agent.id), callKind: purpose ?? 'subagent' };
}

/**
 * Returns a key of everything that headers state about thread, purpose and run. Requests with equal bodies and different keys are
 * different calls; requests with equal bodies and equal keys have the same label.
 */
export function threadKeyOf(headers: Headers): string {
  return JSON.stringify([factsOf(headers), ...SESSION_HEADERS.map((name) => headerOf(headers, name))]);
}

const NO_FACTS: HeaderFacts = { agent: null, purpose: null };

function factsOf(headers: Headers): HeaderFacts {
  return firstMatch((rules) => rules.headers?.(headers) ?? null) ?? NO_FACTS;
}

function isSubagent(call: PromptView): boolean {
  return HARNESS_RULES.some((rules) => rules.subagent?.(call) === true);
}

/** Returns the first result of `match` that is not `null`, over the rules of all harnesses; `null` when no harness's rules match. */
function firstMatch<T>(match: (rules: HarnessRules) => T | null): T | null {
  for (const rules of HARNESS_RULES) {
    const result = match(rules);
    if (result !== null) return result;
  }
  return null;
}
