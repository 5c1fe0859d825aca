import { createHash } from 'node:crypto';
import { FloeError } from '@floe-rl/core';

/** A part of the output, such as `train`, and its share of the rows, from 0 to 1. */
export type Split = { readonly name: string; readonly share: number };

/** A row to be assigned to a split. Rows with the same stratum are divided among the splits in proportion to their shares. */
export type SplitRow = { readonly row: number; readonly digest: string; readonly stratum: string };

/** Largest difference of the sum of the shares from 1. For example, three shares of 0.333 are accepted, and 0.9 and 0.2 are not. */
const SHARE_TOLERANCE = 0.005;

/** Parses splits such as `train=0.9,test=0.1`. Throws `bad_request` when a name occurs twice or the shares do not add up to 1. */
export function parseSplits(text: string): Split[] {
  const splits = text.split(',').map((part) => {
    const [, name = '', share = ''] = /^\s*([A-Za-z][\w-]*)=(\d*\.?\d+)\s*$/.exec(part) ?? [];
    return { name, share: Number(share) };
  });
  const sum = splits.reduce((total, { share }) => total + share, 0);
  const isValid = splits.every(({ name, share }) => name !== '' && share > 0);
  if (!isValid || new Set(splits.map(({ name }) => name)).size < splits.length || Math.abs(sum - 1) > SHARE_TOLERANCE) {
    throw new FloeError('bad_request', `--split ${text}: write names with shares that add up to 1: train=0.9,test=0.1`);
  }
  return splits.map(({ name, share }) => ({ name, share: share / sum }));
}

/**
 * Assigns each row to one split, and returns the names of the splits by row. The result depends on the rows, their strata and the seed, and
 * not on the order of the rows. A stratum with at least as many rows as there are splits has a row in each split. A split with too few or too
 * many rows of earlier strata gets more or fewer rows of later strata.
 */
export function assignSplits(
  rows: readonly SplitRow[],
  splits: readonly Split[],
  seed: number,
): ReadonlyMap<number, string> {
  const strata = new Map<string, SplitRow[]>();
  for (const row of rows) {
    const stratum = strata.get(row.stratum);
    if (stratum === undefined) strata.set(row.stratum, [row]);
    else stratum.push(row);
  }
  const assigned = new Map<number, string>();
  // For each split, its share of the rows of earlier strata minus the number of these rows that it got.
  const owed = splits.map(() => 0);
  for (const key of [...strata.keys()].sort()) {
    const members = shuffled(strata.get(key) ?? [], seed);
    const counts = divide(
      members.length,
      splits.map(({ share }, index) => share * members.length + (owed[index] ?? 0)),
    );
    let from = 0;
    for (const [index, { name, share }] of splits.entries()) {
      const count = counts[index] ?? 0;
      owed[index] = (owed[index] ?? 0) + share * members.length - count;
      for (const { row } of members.slice(from, from + count)) assigned.set(row, name);
      from += count;
    }
  }
  return assigned;
}

/** Divides `total` rows into whole numbers that are as near to `targets` as possible, and at least 1 where there are enough rows. */
function divide(total: number, targets: readonly number[]): number[] {
  const least = total >= targets.length ? 1 : 0;
  const counts = targets.map((target) => Math.max(least, Math.floor(target)));
  const change = (by: 1 | -1): void => {
    // The split that is furthest from its target gets or gives the next row. Of several such splits the first is taken, so that the result is
    // always the same.
    let best = -1;
    let largest = Number.NEGATIVE_INFINITY;
    for (const [index, target] of targets.entries()) {
      const count = counts[index] ?? 0;
      const distance = by * (target - count);
      if (distance <= largest || (by < 0 && count <= least)) continue;
      best = index;
      largest = distance;
    }
    counts[best] = (counts[best] ?? 0) + by;
  };
  for (let sum = counts.reduce((a, b) => a + b, 0); sum !== total; sum += sum < total ? 1 : -1) {
    change(sum < total ? 1 : -1);
  }
  return counts;
}

function shuffled(rows: readonly SplitRow[], seed: number): SplitRow[] {
  const keyed = rows.map((row) => ({
    row,
    key: createHash('sha256').update(`${seed} ${row.digest} ${row.row}`).digest('hex'),
  }));
  return keyed.sort((a, b) => (a.key < b.key ? -1 : 1)).map(({ row }) => row);
}
