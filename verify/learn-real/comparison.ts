// Compares the tokens of sessions with PyTorch's log-probabilities, and shows that the comparison notices defects.

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { SessionResult } from '@floe-rl/core/schema';
import { encodeExport, trainingGroups } from '@floe-rl/data/trainers';
import { repositoryRoot } from '../../tools/repository.ts';
import { runPython } from './processes.ts';

const PROGRAM = join(repositoryRoot(), 'verify', 'learn-real', 'recompute.py');
/** Smallest difference of log-probabilities that a shift by one token must cause. */
const NOTICED_DIFFERENCE = 1;
/**
 * Smallest share of the samples that a shift by one token must change. When the policy is certain of a sample, its tokens may have equal
 * log-probabilities.
 */
const NOTICED_SHARE = 0.99;

/** What recompute.py reports. */
type Report = {
  readonly traces: number;
  readonly tokens_compared: number;
  readonly max_abs_logprob_diff: number;
  readonly p999: number;
  /** Mean ratio of PyTorch's probability to the recorded probability. */
  readonly ratio_mean: number;
  /** Tokens whose version is unknown. They are not compared. */
  readonly tokens_without_version: number;
  readonly spanning_traces: number;
  /** Replies during which the weights were updated, and the largest difference of their tokens; `null` without such replies. */
  readonly spanning_replies: number;
  readonly max_abs_logprob_diff_spanning: number | null;
  /** The largest difference of these tokens if the engine had kept the cache of the old weights. */
  readonly max_abs_logprob_diff_kept_cache: number | null;
  /** Number of samples that the trainer took, and the number of taken samples that differ from every trace. */
  readonly taken_samples: number;
  readonly unmatched_samples: number;
};

export type Comparison = Report & { readonly notices_shifted_logprobs: boolean; readonly notices_shifted_ids: boolean };

type Input = {
  readonly results: readonly SessionResult[];
  /** File with the samples that the trainer took. */
  readonly taken: string;
  /** Folder with the weights of each version. */
  readonly weights: string;
  readonly dir: string;
  readonly name: string;
};

/**
 * Compares every token of the results. Repeats the comparison with the recorded log-probabilities shifted by one token, and with the ids
 * shifted by one token.
 */
export async function compareTokens(
  python: string,
  { results, taken, weights, dir, name }: Input,
): Promise<Comparison> {
  const traces = join(dir, `${name}-traces.jsonl`);
  writeFileSync(traces, encodeExport(trainingGroups(results), { format: 'floe' }, 'jsonl'));
  const recompute = async (...shift: readonly string[]): Promise<Report> => {
    const output = join(dir, `${name}-compared${shift.join('')}.json`);
    const args = [PROGRAM, traces, weights, '--taken', taken, '--output', output, ...shift];
    await runPython(python, args, {}, join(dir, `${name}-compared.log`));
    return JSON.parse(readFileSync(output, 'utf8')) as Report;
  };
  const report = await recompute();
  const [logprobs, ids] = [await recompute('--shift', 'logprobs'), await recompute('--shift', 'ids')];
  return { ...report, notices_shifted_logprobs: notices(logprobs), notices_shifted_ids: notices(ids) };
}

function notices({ max_abs_logprob_diff: largest, taken_samples, unmatched_samples }: Report): boolean {
  return largest > NOTICED_DIFFERENCE && unmatched_samples >= NOTICED_SHARE * taken_samples;
}
