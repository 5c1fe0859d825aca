import type { LogprobsMode, Sampling } from '../../schema/index.ts';
import { refusal } from '../record.ts';
import { processedLogprob } from './processed.ts';
import type { parseDistribution } from './reply.ts';

/** A sampled token is mostly among so many of the most likely; the whole vocabulary is megabytes. */
const FIRST_COUNT = 64;

/** The most likely tokens behind `prefix`, at most `count`. */
export type Distribution = (prefix: Int32Array, count: number) => Promise<ReturnType<typeof parseDistribution>>;

export type LostLogprobs = {
  readonly promptIds: Int32Array;
  readonly ids: Int32Array;
  /** NaN where it was not told. */
  readonly known: Float32Array;
  readonly mode: LogprobsMode;
  /** Whether the mode `processed` is another distribution than `raw`. */
  readonly transformed: boolean;
  readonly sampling: Sampling;
  readonly vocabulary: number | null;
};

/**
 * Asks anew for each log-probability that a reply does not tell: the model is the same, and so is what came before the token.
 * Throws `engine_error` when the server does not tell it either.
 */
export async function findLostLogprobs(lost: LostLogprobs, distribution: Distribution): Promise<Float32Array> {
  const { promptIds, ids, known } = lost;
  const found = known.slice();
  for (const [index, id] of ids.entries()) {
    if (!Number.isNaN(known[index])) continue;
    const prefix = new Int32Array(promptIds.length + index);
    prefix.set(promptIds);
    prefix.set(ids.subarray(0, index), promptIds.length);
    found[index] = await findOne(lost, id, (count) => distribution(prefix, count));
  }
  return found;
}

async function findOne(
  { mode, transformed, sampling, vocabulary }: LostLogprobs,
  id: number,
  likeliest: (count: number) => ReturnType<Distribution>,
): Promise<number> {
  const whole = vocabulary ?? 2 ** 31 - 1;
  if (mode === 'processed' && transformed) {
    const logprob = processedLogprob(await likeliest(whole), id, sampling);
    if (logprob === null) throw refusal(`the sampling that was asked for cannot have sampled the id ${id}`);
    return logprob;
  }
  for (const count of [FIRST_COUNT, whole]) {
    const told = (await likeliest(count)).find((candidate) => candidate.id === id);
    if (told !== undefined) return told.logprob;
  }
  throw refusal(`the server does not tell the log-probability of the id ${id}`);
}
