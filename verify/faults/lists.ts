import type { FloeClient } from '@floe-rl/client';
import type { SessionFacts, SessionResult, SessionTotals } from '@floe-rl/core/schema';

/** Number of facts in one request. */
const PAGE_SIZE = 500;
/**
 * Largest relative difference between two sums of rewards that count as equal. They differ slightly because one sum is computed from a rounded
 * mean.
 */
const ROUNDING = 1e-9;

/**
 * Compares the server's list of ended sessions with the results that a trainer read, and the server's totals with the sums of the listed
 * sessions. `results` must be all results of the server. Returns one sentence for each difference.
 */
export async function checkLists(client: FloeClient, results: ReadonlyMap<string, SessionResult>): Promise<string[]> {
  const listed: SessionFacts[] = [];
  for await (const facts of client.endedSessions({}, { pageSize: PAGE_SIZE })) listed.push(facts);
  return [...compareFacts(listed, results), ...(await compareTotals(client, listed))];
}

function compareFacts(listed: readonly SessionFacts[], results: ReadonlyMap<string, SessionResult>): string[] {
  const wrong: string[] = [];
  const seen = new Set<string>();
  for (const facts of listed) {
    const { session_id: id } = facts;
    if (seen.has(id)) wrong.push(`session ${id} is listed twice`);
    seen.add(id);
    const result = results.get(id);
    if (result === undefined) {
      wrong.push(`session ${id} is listed as ended, and the trainer has read no result of it`);
      continue;
    }
    const expected = {
      task_id: result.task_id,
      outcome: result.outcome,
      unusable: result.unusable,
      reward: result.reward,
      attempt: result.attempt,
      trained_tokens: result.trainable_tokens,
      traces: result.trace_count,
      version: result.policy_versions?.last ?? null,
      sampled_tokens: result.audit?.tokens.sampled ?? facts.sampled_tokens,
    };
    for (const [name, value] of Object.entries(expected)) {
      const shown = facts[name as keyof typeof expected];
      if (shown !== value) wrong.push(`session ${id} is listed with ${name} ${shown}, and its result has ${value}`);
    }
  }
  for (const id of results.keys()) if (!seen.has(id)) wrong.push(`session ${id} has a result and is not listed`);
  return wrong;
}

/** Compares two kinds of totals with the sums of the listed sessions: the totals of all sessions, and the totals by outcome and version. */
async function compareTotals(client: FloeClient, listed: readonly SessionFacts[]): Promise<string[]> {
  const wrong: string[] = [];
  for (const by of [[], ['outcome', 'version'], ['hour']] as const) {
    const totals = await client.sessionTotals(by);
    const counted = totals.reduce((sum, { sessions }) => sum + sessions, 0);
    if (counted !== listed.length) wrong.push(`the totals by ${by} have ${counted} sessions, not ${listed.length}`);
    for (const total of totals) {
      const own = listed.filter((facts) => belongs(facts, total));
      const rewards = own.flatMap(({ reward }) => (reward === null ? [] : [reward]));
      const sum = (field: 'sampled_tokens' | 'trained_tokens'): number => own.reduce((all, one) => all + one[field], 0);
      const expected = {
        sessions: own.length,
        usable: own.filter(({ unusable }) => unusable === null).length,
        rewards: rewards.length,
        sampled_tokens: sum('sampled_tokens'),
        trained_tokens: sum('trained_tokens'),
      };
      const name = JSON.stringify(total.by);
      for (const [field, value] of Object.entries(expected) as [keyof typeof expected, number][]) {
        if (total[field] !== value) wrong.push(`${field} of the totals ${name} is ${total[field]}, not ${value}`);
      }
      const rewardSum = rewards.reduce((all, reward) => all + reward, 0);
      const difference = Math.abs((total.reward_mean ?? 0) * total.rewards - rewardSum);
      if (difference > ROUNDING * (1 + Math.abs(rewardSum))) {
        wrong.push(
          `the rewards of the totals ${name} have the mean ${total.reward_mean}, and their sum is ${rewardSum}`,
        );
      }
    }
  }
  return wrong;
}

function belongs(facts: SessionFacts, { by }: SessionTotals): boolean {
  const { outcome, version, hour } = by;
  return (
    (outcome === undefined || outcome === facts.outcome) &&
    (version === undefined || version === facts.version) &&
    (hour === undefined || hour === `${facts.ended_at.slice(0, 'YYYY-MM-DDTHH'.length)}:00:00.000Z`)
  );
}
