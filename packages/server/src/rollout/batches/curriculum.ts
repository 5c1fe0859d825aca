import { createHash } from 'node:crypto';
import type { BatchOrder } from '@floe-rl/core/schema';

/** Facts about a row from its last groups. */
export type RowHistory = {
  readonly rowIndex: number;
  /** Epoch of the row's last finished group; `null` when it has none. */
  readonly lastEpoch: number | null;
  /** Mean reward of the row's last finished group; `null` when it has none. */
  readonly meanReward: number | null;
  readonly lastResult: 'all_wrong' | 'all_right' | 'other' | null;
};

/** Weight of a row whose rewards are all equal. For comparison, a row that is solved half of the time has the weight 0.25. */
const LEAST_WEIGHT = 0.01;
/** Weight of a row that was never sampled, so that new rows come before rows that are known to be uninformative. */
const NEW_ROW_WEIGHT = 0.25;

/**
 * Returns the rows of one epoch in the order in which they are sampled. The plan depends only on the arguments, so every server makes the same
 * plan. Each given row is in the plan once, except rows that `skip_solved` leaves out, and rows that `replay_hard` adds a second time.
 */
export function planEpoch(
  rows: readonly RowHistory[],
  epoch: number,
  order: BatchOrder,
  resolvedReward: number,
): number[] {
  const due = rows.filter(
    ({ lastResult, lastEpoch }) =>
      lastResult !== 'all_right' || lastEpoch === null || epoch - lastEpoch > order.skip_solved,
  );
  // An epoch must not be empty. When all rows are solved, all are sampled.
  const chosen = due.length === 0 ? rows : due;
  const hard = chosen.filter(({ lastResult }) => lastResult === 'all_wrong');
  const repeated = byKey(hard, (row) => -uniform(order.seed, epoch, row.rowIndex, 'replay'));
  const visits = [...chosen, ...repeated.slice(0, Math.floor(chosen.length * order.replay_hard))];
  if (order.kind === 'sequential') return visits.map(({ rowIndex }) => rowIndex);
  const keyed = visits.map((row, visit) => ({ row, draw: uniform(order.seed, epoch, row.rowIndex, String(visit)) }));
  // Orders the rows by weight without repetition: by the key u^(1/w) of Efraimidis and Spirakis (2006), largest first.
  const key = ({ row, draw }: (typeof keyed)[number]): number =>
    order.kind === 'shuffled' ? draw : draw ** (1 / weightOf(row, resolvedReward));
  return byKey(keyed, key).map(({ row }) => row.rowIndex);
}

function weightOf({ meanReward }: RowHistory, resolvedReward: number): number {
  if (meanReward === null) return NEW_ROW_WEIGHT;
  const share = Math.min(1, Math.max(0, meanReward / resolvedReward));
  return Math.max(LEAST_WEIGHT, share * (1 - share));
}

function byKey<T>(items: readonly T[], key: (item: T) => number): T[] {
  return items
    .map((item) => ({ item, key: key(item) }))
    .sort((a, b) => b.key - a.key)
    .map(({ item }) => item);
}

/** Returns a number in (0, 1) that depends only on the arguments. */
function uniform(seed: number, epoch: number, rowIndex: number, purpose: string): number {
  const digest = createHash('sha256').update(`${seed}/${epoch}/${rowIndex}/${purpose}`).digest();
  return (digest.readUIntBE(0, 6) + 1) / (2 ** 48 + 2);
}
