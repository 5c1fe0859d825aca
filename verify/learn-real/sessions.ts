// Reads the results of all sessions of a floe.
import type { RolloutStatus, SessionResult } from '@floe-rl/core/schema';
import type { RunningFloe } from '../runner/floe.ts';

const PAGE = 200;
/** Outcomes that count as no loss: a stream ended the session early, or the agent or its policy caused the outcome. */
const KEPT = ['completed', 'truncated_turns', 'truncated_context', 'cancelled'];

/** Returns the results of all sessions that have ended. With `trainer`, returns only the results of this trainer's sessions. */
export async function allResults(floe: RunningFloe, trainer?: string): Promise<SessionResult[]> {
  const results: SessionResult[] = [];
  for (let after = 0; ; ) {
    const query = new URLSearchParams({ after: String(after), limit: String(PAGE), peek: 'true' });
    if (trainer !== undefined) query.set('trainer', trainer);
    const page = (await get(floe, `/rollout/results?${query}`)) as { results: SessionResult[]; next_cursor: number };
    if (page.results.length === 0) return results;
    results.push(...page.results);
    after = page.next_cursor;
  }
}

/** Returns the number of lost sessions: sessions without a result, and sessions that ended by a fault of the infrastructure. */
export async function lostSessions(floe: RunningFloe): Promise<number> {
  const results = await allResults(floe);
  const { sessions } = (await get(floe, '/rollout/status')) as RolloutStatus;
  const submitted = Object.values(sessions).reduce((sum, count) => sum + count, 0);
  return submitted - results.filter(({ outcome }) => KEPT.includes(outcome)).length;
}

async function get({ url, env }: RunningFloe, path: string): Promise<unknown> {
  const reply = await fetch(`${url}${path}`, { headers: { authorization: `Bearer ${env.FLOE_TOKEN}` } });
  if (!reply.ok) throw new Error(`${path}: ${reply.status} ${await reply.text()}`);
  return reply.json();
}
