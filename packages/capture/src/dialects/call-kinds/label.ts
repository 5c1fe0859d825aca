import { type AgentSpec, type CallKind, type CallRules, callRulesSchema } from '@floe-rl/core/schema';
import type { Headers } from '../dialect.ts';
import { HARNESS_RULES, type HarnessRules, type HeaderFacts, headerOf } from './harness-rules.ts';
import { MAIN_THREAD, type Prompt, PromptView, threadOfId } from './prompt-view.ts';

type CallLabel = { readonly thread: string; readonly callKind: CallKind; readonly enginePool?: string };

/** The parts of a request that determine its agent thread and its purpose. */
type LabelInput = Prompt & { readonly headers: Headers };

/** Headers that identify one run of a harness. They are needed because an agent may start its harness twice with the same prompt. */
const SESSION_HEADERS = ['x-claude-code-session-id', 'x-session-id', 'session-id', 'session_id'] as const;

/**
 * Returns the harness whose rules label the agent's model calls: the harness that the task names, or else the agent's own harness. `null` when
 * there are no rules for the agent's harness, for example for `shell`.
 */
export function callRulesOf(agent: Pick<AgentSpec, 'harness' | 'call_rules'>): CallRules | null {
  return agent.call_rules ?? callRulesSchema.safeParse(agent.harness).data ?? null;
}

/**
 * Whether the harness repeats a request when it cannot use the reply, although neither a header nor a closed connection shows that the
 * request is a repetition.
 */
export function resendsUnusedReplies(rulesName: CallRules | null): boolean {
  return rulesNamed(rulesName).resendsUnusedReplies === true;
}

/**
 * Determines which agent thread a request belongs to and what its purpose is, by the rules of the session's harness. Headers decide if the
 * harness sends them. Otherwise the prompt decides, by its tools, the requested JSON schema and the wording of the harness. The main agent's
 * thread is `main`, also for its summaries. A request that matches no rule counts as the main agent's: a wrong `main` label adds a useless
 * training sample, whereas any other wrong label loses a useful one. `rulesName` is `null` for an agent without rules.
 */
export function labelCall(rulesName: CallRules | null, { headers, ...prompt }: LabelInput): CallLabel {
  const rules = rulesNamed(rulesName);
  const facts = factsOf(rules, headers);
  const call = new PromptView(prompt);
  const purpose = facts.purpose ?? rules.purpose?.(call) ?? null;
  const agent = facts.agent ?? { kind: rules.subagent?.(call) === true ? 'subagent' : 'main', id: null };
  const pool = facts.enginePool === undefined ? {} : { enginePool: facts.enginePool };
  if (agent.kind === 'main') return { thread: MAIN_THREAD, callKind: purpose ?? 'main', ...pool };
  const thread = agent.id === null ? call.threadName() : threadOfId(agent.id);
  return { thread, callKind: purpose ?? 'subagent', ...pool };
}

/**
 * Returns a text that identifies the agent thread, the purpose and the run of the harness that the headers of a request name. Two requests
 * with equal bodies are the same call only if this text is equal too.
 */
export function threadKeyOf(rulesName: CallRules | null, headers: Headers): string {
  return JSON.stringify([
    factsOf(rulesNamed(rulesName), headers),
    ...SESSION_HEADERS.map((name) => headerOf(headers, name)),
  ]);
}

const NO_FACTS: HeaderFacts = { agent: null, purpose: null };
const NO_RULES: HarnessRules = {};

function rulesNamed(name: CallRules | null): HarnessRules {
  return name === null ? NO_RULES : HARNESS_RULES[name];
}

function factsOf(rules: HarnessRules, headers: Headers): HeaderFacts {
  return rules.headers?.(headers) ?? NO_FACTS;
}
