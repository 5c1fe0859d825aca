import type { GroupFacts, SessionTotals } from '@floe-rl/core/schema';

/** Advice for the reader, with a link to the view that shows the reason. */
export type Advice = {
  readonly text: string;
  readonly path: readonly string[];
  readonly params: Record<string, string>;
};

/** With fewer sessions, shares mean little. */
const ENOUGH_SESSIONS = 20;
const ENOUGH_GROUPS = 10;

/** Outcomes that are mentioned when at least this share of the sessions has them, with their meanings. */
const OUTCOMES = [
  ['truncated_context', 0.1, 'filled their context: their agents need more room, or shorter tool results'],
  ['truncated_turns', 0.2, 'used up their turns'],
  ['agent_timeout', 0.1, 'ran out of time, which also holds their places on the nodes'],
  ['agent_error', 0.1, 'ended with an error of the agent'],
  ['env_error', 0.05, 'could not prepare their sandbox or world'],
  ['verifier_error', 0.02, 'could not be graded, so they have no reward'],
  ['engine_error', 0.02, 'failed because of the engines, after all retries'],
  ['infra_error', 0.02, 'failed because of the infrastructure, after all retries'],
  ['no_completions', 0.05, 'made no model call'],
] as const;

/** If at least this share of the groups has no difference in rewards, most sampling is wasted. */
const DEGENERATE_SHARE = 0.5;

/** Returns advice about ended sessions. `totals` are by outcome, and `groups` the newest groups. */
export function adviceOf(totals: readonly SessionTotals[], groups: readonly GroupFacts[]): Advice[] {
  const sessions = totals.reduce((sum, group) => sum + group.sessions, 0);
  const advice: Advice[] = [];
  for (const [outcome, least, meaning] of OUTCOMES) {
    const count = totals.find(({ by }) => by.outcome === outcome)?.sessions ?? 0;
    if (sessions < ENOUGH_SESSIONS || count / sessions < least) continue;
    const text = `${percentOf(count, sessions)} of the sessions of the last day ${meaning} (${outcome}).`;
    advice.push({ text, path: ['sessions'], params: { outcome } });
  }
  const rewarded = groups.filter(({ usable, rewards }) => usable > 1 && rewards > 1);
  const equal = rewarded.filter((group) => group.is_degenerate).length;
  if (rewarded.length >= ENOUGH_GROUPS && equal / rewarded.length >= DEGENERATE_SHARE) {
    const text = `${percentOf(equal, rewarded.length)} of the newest ${rewarded.length} groups have equal rewards and teach nothing: their tasks are too easy or too hard.`;
    advice.push({ text, path: ['groups'], params: {} });
  }
  return advice;
}

function percentOf(part: number, whole: number): string {
  return `${Math.round((100 * part) / whole)} %`;
}
