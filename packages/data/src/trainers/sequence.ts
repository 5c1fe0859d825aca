import { FloeError } from '@floe-rl/core';
import { policyStep } from '@floe-rl/core/protocol';
import type { TrainingRow } from './training-row.ts';

/** The advantage of all trained tokens of a row, or one for each response token: [R], 0 where nothing is trained. */
export type RowAdvantage = number | Float32Array;

/** Returns the ids of prompt and response: [T]. */
export function fullIds({ promptIds, responseIds }: TrainingRow): Int32Array {
  const ids = new Int32Array(promptIds.length + responseIds.length);
  ids.set(promptIds);
  ids.set(responseIds, promptIds.length);
  return ids;
}

/** Returns the loss mask of prompt and response, 0 for the prompt: [T]. */
export function fullMask({ promptIds, lossMask }: TrainingRow): Uint8Array {
  const mask = new Uint8Array(promptIds.length + lossMask.length);
  mask.set(lossMask, promptIds.length);
  return mask;
}

/** Returns the logprobs of prompt and response, 0 for the prompt: [T]. */
export function fullLogprobs({ promptIds, logprobs }: TrainingRow): Float32Array {
  const full = new Float32Array(promptIds.length + logprobs.length);
  full.set(logprobs, promptIds.length);
  return full;
}

/** Returns `value` at the positions with mask 1 and 0 elsewhere. */
export function whereTrained(mask: Uint8Array, value: number): Float32Array {
  const values = new Float32Array(mask.length);
  // A loop is used because Float32Array.from is slow when it calls a function for each value.
  for (let i = 0; i < mask.length; i++) if (mask[i] === 1) values[i] = value;
  return values;
}

/** Returns the advantages of the response's tokens, 0 where nothing is trained: [R]. */
export function responseAdvantages({ lossMask }: TrainingRow, advantage: RowAdvantage): Float32Array {
  return typeof advantage === 'number' ? whereTrained(lossMask, advantage) : advantage;
}

/** Returns the advantages of prompt and response, 0 where nothing is trained: [T]. */
export function fullAdvantages(row: TrainingRow, advantage: RowAdvantage): Float32Array {
  const full = new Float32Array(row.promptIds.length + row.responseIds.length);
  full.set(responseAdvantages(row, advantage), row.promptIds.length);
  return full;
}

/** Returns the ranges of response positions with `mask` 1 and 0 in alternation, in order. No range is empty. */
export function maskRuns(
  mask: Uint8Array,
): { readonly trained: boolean; readonly start: number; readonly end: number }[] {
  const runs = [];
  let start = 0;
  for (let end = 1; end <= mask.length; end++) {
    if (end < mask.length && mask[end] === mask[start]) continue;
    runs.push({ trained: mask[start] === 1, start, end });
    start = end;
  }
  return runs;
}

/** Returns the last position with mask 1; -1 when there is none. */
export function lastTrained(mask: Uint8Array): number {
  return mask.lastIndexOf(1);
}

/**
 * Returns the optimizer step that a policy version names, such as 12 for `step-12`. Trainers that compare versions as integers need it.
 * Throws `unsupported` for a version without a step, with a step beyond int32, and for an unknown version.
 */
export function stepOf(version: string | null, row: TrainingRow): number {
  const step = version === null ? null : policyStep(version);
  if (step !== null) return step;
  const named = version === null ? 'is unknown' : `${JSON.stringify(version)} does not end in a step number`;
  throw new FloeError(
    'unsupported',
    `trace ${row.traceId}: the policy version ${named}, but this format needs an integer step; ` +
      'set versions such as "step-12" with POST /engines/version',
    { trace_id: row.traceId, version },
  );
}

/** Returns the policy versions of a row as steps, in order, without duplicates. Empty for a row without sampled tokens. */
export function stepsOf(row: TrainingRow): number[] {
  return [...new Set(row.versionSpans.map(({ version }) => stepOf(version, row)))];
}
