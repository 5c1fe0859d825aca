import { asFloeError, parseAs, parseJson } from '@floe-rl/core';
import { rewardSchema } from '@floe-rl/core/schema';
import { z } from 'zod';
import { componentsSchema } from './evaluation-check.ts';

const MAX_VALUES = 1_000;
/** Longest reward in a text file, in characters. */
const MAX_NUMBER_CHARS = 64;

const numbersSchema = z.record(z.string(), z.union([rewardSchema, z.boolean().transform(Number)]));

/** The rewards that a verifier of Harbor wrote. `components` has all of them by name. It is empty when the verifier wrote a single number. */
export type HarborReward = { readonly reward: number; readonly components: Readonly<Record<string, number>> };

/** Reads `reward.txt`, which has one number. Returns the reason as a text when it has no number. */
export function parseRewardText(file: Buffer): HarborReward | string {
  const text = file.toString().trim();
  const isNumber = text.length <= MAX_NUMBER_CHARS && /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text);
  const parsed = rewardSchema.safeParse(isNumber ? Number(text) : Number.NaN);
  return parsed.success ? { reward: parsed.data, components: {} } : 'reward.txt: is not a number';
}

/**
 * Reads `reward.json`: a number, or an object of numbers. The reward is the number `reward`, or else the mean of all. Returns the reason as a
 * text when the file has no valid reward.
 */
export function parseRewardJson(file: Buffer): HarborReward | string {
  try {
    const value = parseJson(file, MAX_VALUES);
    if (typeof value === 'number') return { reward: parseAs(rewardSchema, value, 'reward.json'), components: {} };
    const components = parseAs(numbersSchema, value, 'reward.json');
    parseAs(componentsSchema, components, 'reward.json');
    const numbers = Object.values(components);
    if (numbers.length === 0) return 'reward.json: has no number';
    return { reward: components.reward ?? meanOf(numbers), components };
  } catch (thrown) {
    return asFloeError(thrown).message;
  }
}

/**
 * Reads the rewards as Polar does (`src/polar/trajectory/evaluator/harbor.py` of NVIDIA-NeMo/ProRL-Agent-Server at 063c948): the number in
 * `reward.txt`, or else the mean of `reward.json`, limited to 0 to 1. `null` stands for a file that does not exist, and for no reward.
 */
export function parsePolarReward(text: Buffer | null, json: Buffer | null): HarborReward | string | null {
  const fromText = text === null ? null : parseRewardText(text);
  const isUsable = json === null || (fromText !== null && typeof fromText !== 'string');
  const read = isUsable ? fromText : parseRewardJson(json);
  if (read === null || typeof read === 'string') return read;
  const numbers = Object.values(read.components);
  const reward = numbers.length === 0 ? read.reward : meanOf(numbers);
  return { reward: Math.min(1, Math.max(0, reward)), components: read.components };
}

function meanOf(numbers: readonly number[]): number {
  return numbers.reduce((sum, number) => sum + number, 0) / numbers.length;
}

const HEADER = /^=+\s*short test summary info\s*=+/i;
const RESULT = /^(PASSED|FAILED|SKIPPED|XFAIL|XPASS|ERROR)\b:?\s+\S/;
const GOOD = new Set(['PASSED', 'SKIPPED', 'XFAIL']);

/**
 * Reads the short test summary that pytest prints with `-rA`. The reward is 1 when every listed test passed. Returns the reason as a text when
 * the output has no summary with a test.
 */
export function parsePytestSummary(stdout: string): HarborReward | string {
  const lines = stdout.split('\n');
  const start = lines.findIndex((line) => HEADER.test(line));
  if (start < 0) return 'the output has no short test summary of pytest';
  const statuses = lines.slice(start + 1).flatMap((line) => RESULT.exec(line)?.[1] ?? []);
  if (statuses.length === 0) return 'the short test summary of pytest lists no test';
  const passed = statuses.filter((status) => GOOD.has(status)).length;
  return { reward: Number(passed === statuses.length), components: { tests_passed: passed / statuses.length } };
}
