// Damage to the data of a trainer, between floe's API and the trainer. Each kind leaves data that looks sound: arrays of equal length, as
// many trained tokens as before, the same rewards.
import type { RandomSource } from '@floe-rl/core';
import type { SessionResult, Trace, VersionSpan } from '@floe-rl/core/schema';
import { bundledVocabulary } from '@floe-rl/sim';

export type Sabotage = {
  readonly name: string;
  /** Returns the damaged form of the groups. `random` decides what is damaged how. */
  readonly apply: (groups: readonly SessionResult[][], random: RandomSource) => SessionResult[][];
};

export const SABOTAGES: readonly Sabotage[] = [
  { name: 'mask shifted by one', apply: (groups) => mapTraces(groups, shiftMask) },
  { name: 'ids re-tokenised', apply: (groups) => mapTraces(groups, retokenise) },
  { name: 'rewards permuted', apply: (groups, random) => groups.map((group) => permuteRewards(group, random)) },
];

function mapTraces(groups: readonly SessionResult[][], change: (trace: Trace) => Trace): SessionResult[][] {
  return groups.map((group) =>
    group.map((result) =>
      result.trajectory === null
        ? result
        : { ...result, trajectory: { ...result.trajectory, traces: result.trajectory.traces.map(change) } },
    ),
  );
}

/** Moves the loss mask one token later: the first token of each reply is not trained, and the token after the reply is. */
export function shiftMask(trace: Trace): Trace {
  return { ...trace, loss_mask: [0, ...trace.loss_mask.slice(0, -1)] };
}

/**
 * Decodes each trained stretch of ids and encodes its text again. The log-probability of a new token is the sum over the sampled tokens that
 * begin in it. Its version is the version of the first of them. So nothing but the ids and their boundaries is wrong.
 */
export function retokenise(trace: Trace): Trace {
  const vocabulary = bundledVocabulary();
  const ids: number[] = [];
  const mask: number[] = [];
  const logprobs: number[] = [];
  const spans: VersionSpan[] = [];
  for (let start = 0; start < trace.response_ids.length; ) {
    const bit = trace.loss_mask[start] as number;
    let end = start;
    while (end < trace.response_ids.length && trace.loss_mask[end] === bit) end++;
    const old = trace.response_ids.slice(start, end);
    const fresh = bit === 1 ? vocabulary.encode(vocabulary.decode(old)) : old;
    // `from` is the index of the first old token that begins in the new token or after it.
    let from = start;
    let oldBytes = 0;
    let freshBytes = 0;
    for (const id of fresh) {
      const first = Math.min(from, end - 1);
      freshBytes += vocabulary.bytes(id).length;
      let logprob = 0;
      for (; from < end && oldBytes < freshBytes; from++) {
        logprob += trace.response_logprobs[from] as number;
        oldBytes += vocabulary.bytes(trace.response_ids[from] as number).length;
      }
      if (bit === 1) addVersion(spans, trace, first, ids.length);
      ids.push(id);
      mask.push(bit);
      logprobs.push(logprob);
    }
    start = end;
  }
  return { ...trace, response_ids: ids, loss_mask: mask, response_logprobs: logprobs, version_spans: spans };
}

/** Appends to `spans` that position `to` has the version that position `from` of the trace has. */
function addVersion(spans: VersionSpan[], trace: Trace, from: number, to: number): void {
  const known = trace.version_spans.find(({ start, end }) => from >= start && from < end);
  if (known === undefined) return;
  const last = spans.at(-1);
  if (last !== undefined && last.version === known.version && last.end === to) last.end = to + 1;
  else spans.push({ version: known.version, start: to, end: to + 1 });
}

/** Gives each sample of a group the reward of another sample: all rewards move by the same number of samples. */
export function permuteRewards(group: readonly SessionResult[], random: RandomSource): SessionResult[] {
  if (group.length < 2) return [...group];
  const distance = 1 + Math.floor(random() * (group.length - 1));
  return group.map((result, index) => ({
    ...result,
    reward: group[(index + distance) % group.length]?.reward ?? null,
  }));
}
