import type { CallKind } from '../../schema/index.ts';
import type { Headers } from '../dialect.ts';
import { FAMILIES } from './families.ts';
import { type HeaderFacts, headerOf } from './harness-rules.ts';
import { CallView, MAIN_THREAD, type Prompt, threadOfId } from './prompt-view.ts';

export type CallLabel = { readonly thread: string; readonly callKind: CallKind };

/** What a request's label is told from, in canonical form. */
export type CallShape = Prompt & { readonly headers: Headers };

/** Which run of a harness a request is of. An agent may start its harness twice, with the same prompt. */
const SESSION_HEADERS = ['x-claude-code-session-id', 'x-session-id', 'session-id', 'session_id'] as const;

/**
 * Which agent thread a request belongs to and what it is for. What a harness says in headers counts; where it says nothing, the
 * prompt does: tools, the form of JSON that is asked for, and how the harness words what it asks for beside the agent's turns.
 * The main agent's thread is `main`, also through its summaries. Everything unknown is a turn of the main agent: a wrong `main`
 * costs a sample, a wrong auxiliary label loses one.
 */
export function labelCall({ headers, ...prompt }: CallShape): CallLabel {
  const facts = factsOf(headers);
  const call = new CallView(prompt);
  const purpose = facts.purpose ?? firstOf((family) => family.purpose?.(call) ?? null);
  const agent = facts.agent ?? { kind: isSubagent(call) ? 'subagent' : 'main', id: null };
  if (agent.kind === 'main') return { thread: MAIN_THREAD, callKind: purpose ?? 'main' };
  return { thread: agent.id === null ? call.threadName() : threadOfId(agent.id), callKind: purpose ?? 'subagent' };
}

/**
 * What headers say of a request's thread and purpose: bodies that are the same with different values here are different calls.
 * Two requests with one body and one key have one label.
 */
export function threadKeyOf(headers: Headers): string {
  return JSON.stringify([factsOf(headers), ...SESSION_HEADERS.map((name) => headerOf(headers, name))]);
}

const NOTHING_TOLD: HeaderFacts = { agent: null, purpose: null };

function factsOf(headers: Headers): HeaderFacts {
  return firstOf((family) => family.headers?.(headers) ?? null) ?? NOTHING_TOLD;
}

function isSubagent(call: CallView): boolean {
  return FAMILIES.some((family) => family.subagent?.(call) === true);
}

function firstOf<T>(ask: (family: (typeof FAMILIES)[number]) => T | null): T | null {
  for (const family of FAMILIES) {
    const answer = ask(family);
    if (answer !== null) return answer;
  }
  return null;
}
