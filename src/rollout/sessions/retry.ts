import { OUTCOMES, retriesAfter } from '../../core/outcomes.ts';
import type { Outcome, SessionSummary, TaskRequest } from '../../schema/index.ts';
import type { SessionRow, StoreTables } from '../../store/index.ts';
import type { Effects, RolloutContext } from '../context.ts';
import { takesSessions } from '../nodes/nodes.ts';

/** How a session goes back to the queue. */
export type NextAttempt = {
  readonly attempt: number;
  readonly delayMs: number;
  readonly maxAttempts?: number;
  /** Another node comes first for a while. */
  readonly avoidNode?: string | null;
};

/** The error code of a node that shuts down in order and hands its sessions back. */
const HANDED_BACK = 'not_ready';

/** A node that shuts down hands its sessions back. That says nothing of them, so it costs them no try. */
export function wasHandedBack(summary: SessionSummary): boolean {
  return summary.outcome === 'infra_error' && summary.error?.code === HANDED_BACK;
}

/** The attempt that follows one that ended with `outcome`; null: the session ends with it. */
export async function nextAttempt(
  context: RolloutContext,
  tables: StoreTables,
  effects: Effects,
  row: SessionRow,
  outcome: Outcome,
  task: TaskRequest,
): Promise<NextAttempt | null> {
  const limit = retriesAfter(outcome, task.outcome_policy);
  if (limit === 0) return null;
  const left =
    row.attempt < row.max_attempts &&
    (limit === Number.POSITIVE_INFINITY || (await endedBefore(tables, row, outcome)) < limit);
  effects.counted.push(left ? 'retries' : 'given_up');
  if (!left) return null;
  const attempt = row.attempt + 1;
  const avoidNode = OUTCOMES[outcome].retried ? await nodeToAvoid(context, tables, row) : null;
  return { attempt, delayMs: retryDelayMs(context, attempt), avoidNode };
}

/** How many earlier attempts ended with `outcome`. One that was cut off has told nothing, and counts as `infra_error`. */
async function endedBefore(tables: StoreTables, row: SessionRow, outcome: Outcome): Promise<number> {
  const told = (await tables.results.deliveriesOf(row.session_id))
    .filter((delivery) => delivery.kind === 'retried')
    .map((delivery) => JSON.parse(delivery.summary) as SessionSummary);
  const cutOff = outcome === 'infra_error' ? row.attempt - 1 - told.length : 0;
  return cutOff + told.filter((summary) => summary.outcome === outcome && !wasHandedBack(summary)).length;
}

/** The node that failed the session, when there is another one that could take it. */
async function nodeToAvoid(context: RolloutContext, tables: StoreTables, row: SessionRow): Promise<string | null> {
  const others = (await tables.nodes.list()).filter(
    (node) => node.node_id !== row.node_id && takesSessions(context, node),
  );
  return others.length > 0 ? row.node_id : null;
}

/** Delay before an attempt: doubles with each, up to the configured maximum. */
function retryDelayMs(context: RolloutContext, nextAttempt: number): number {
  const { retry_backoff_seconds: base, retry_backoff_max_seconds: max } = context.config;
  return Math.min(max, base * 2 ** (nextAttempt - 2)) * 1000;
}
