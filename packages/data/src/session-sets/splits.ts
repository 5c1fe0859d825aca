import { createHash } from 'node:crypto';
import { FloeError } from '@floe-rl/core';
import { parseSplits, type Split } from '../generation/splits.ts';
import { fieldText } from './acceptance.ts';
import type { SetRow } from './set-row.ts';

/** Returns the split of a row. */
export type SplitRule = (row: SetRow) => string;

/** Name of the only split of a set that is not divided, as `datasets` names it. */
const ONLY_SPLIT = 'train';
const SPLIT_NAME = /^[A-Za-z]\w{0,63}$/;
/** Number of hexadecimal digits of a digest that make a number below 2^48. */
const DIGITS = 12;

/**
 * Parses the division of a set. `text` has shares, such as `train=0.9,test=0.1`, or the path of the field whose value is the split, such as
 * `origin.split`. With `null` the set has one split.
 *
 * With shares, the split of a row depends only on its value at the path `key`. A later export with more sessions therefore moves no row to
 * another split. Throws `bad_request` for other texts.
 */
export function splitRule(text: string | null, key: string): SplitRule {
  if (text === null) return () => ONLY_SPLIT;
  if (!text.includes('=')) return (row) => namedSplit(row, text);
  const splits = parseSplits(text);
  for (const { name } of splits) {
    if (!SPLIT_NAME.test(name))
      throw new FloeError('bad_request', `--split: ${name} is not a name of letters, digits and _`);
  }
  return (row) => splitAt(splits, shareOf(fieldText(row, key) ?? ''));
}

function namedSplit(row: SetRow, path: string): string {
  const value = fieldText(row, path);
  if (value !== null && SPLIT_NAME.test(value)) return value;
  const problem = value === null ? 'is missing' : `is ${JSON.stringify(value)}, which is not the name of a split`;
  throw new FloeError('schema_violation', `session ${row.session_id}: ${path} ${problem}`, { path });
}

/** Returns a number from 0 to 1, exclusive, that depends only on the text. */
function shareOf(text: string): number {
  const digest = createHash('sha256').update(text).digest('hex');
  return Number.parseInt(digest.slice(0, DIGITS), 16) / 16 ** DIGITS;
}

function splitAt(splits: readonly Split[], position: number): string {
  let end = 0;
  for (const { name, share } of splits) {
    end += share;
    if (position < end) return name;
  }
  return splits.at(-1)?.name ?? ONLY_SPLIT;
}
