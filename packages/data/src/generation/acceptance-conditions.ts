import { FloeError } from '@floe-rl/core';
import { outcomeSchema, type SessionResult } from '@floe-rl/core/schema';

/** The fields of a result that conditions may test. */
type Judged = Pick<
  SessionResult,
  'outcome' | 'reward' | 'reward_components' | 'unusable' | 'trainable_tokens' | 'completion_count'
>;

const COMPARISONS: Readonly<Record<string, (value: number, limit: number) => boolean>> = {
  '>=': (value, limit) => value >= limit,
  '<=': (value, limit) => value <= limit,
  '>': (value, limit) => value > limit,
  '<': (value, limit) => value < limit,
  '=': (value, limit) => value === limit,
  '!=': (value, limit) => value !== limit,
};

/** The fields with numbers that a condition may name, beside `components.NAME`. */
const NUMBERS: Readonly<Record<string, (result: Judged) => number | null>> = {
  reward: (result) => result.reward,
  trainable_tokens: (result) => result.trainable_tokens,
  completion_count: (result) => result.completion_count,
};

const COMPONENT = 'components.';

/** The fields that a condition may name; `components.NAME` stands for any component of the reward. */
export const CONDITION_FIELDS: readonly string[] = [...Object.keys(NUMBERS), `${COMPONENT}NAME`, 'outcome'];

/** A condition that a sample must fulfil to be accepted, with the text from which it was parsed. */
export type Condition = { readonly text: string; readonly holds: (result: Judged) => boolean };

/** The conditions of a run that names none. */
export const DEFAULT_CONDITIONS: readonly string[] = ['reward>=1'];

/**
 * Parses a condition such as `reward>=1`, `components.lint>0.5` or `outcome=completed,truncated_turns`. A sample fulfils the last condition if
 * it has one of the listed outcomes. A number that could not be computed fulfils no condition. Throws `bad_request` for any other text.
 */
export function parseCondition(text: string): Condition {
  const [, field = '', comparison = '', operand = ''] =
    /^\s*([\w.-]+?)\s*(>=|<=|!=|>|<|=)\s*(.+?)\s*$/.exec(text) ?? [];
  if (field === 'outcome') return outcomeCondition(text, comparison, operand);
  const read = numberOf(field);
  const holds = COMPARISONS[comparison];
  const limit = Number(operand);
  if (holds === undefined || read === null || !Number.isFinite(limit)) throw invalid(text);
  return {
    text,
    holds: (result) => {
      const value = read(result);
      return value !== null && holds(value, limit);
    },
  };
}

/**
 * Returns whether a sample is accepted: it can be trained on, as its `unusable` states, and fulfils all conditions. A session that the
 * policy of its outcome masks or drops is therefore never accepted, whatever its reward.
 */
export function isAccepted(result: Judged, conditions: readonly Condition[]): boolean {
  return result.unusable === null && conditions.every((condition) => condition.holds(result));
}

function outcomeCondition(text: string, comparison: string, operand: string): Condition {
  const outcomes = operand.split(',').map((name) => name.trim());
  const isKnown = outcomes.every((name) => outcomeSchema.safeParse(name).success);
  if (!isKnown || (comparison !== '=' && comparison !== '!=')) throw invalid(text);
  return { text, holds: ({ outcome }) => outcomes.includes(outcome) === (comparison === '=') };
}

function numberOf(field: string): ((result: Judged) => number | null) | null {
  if (Object.hasOwn(NUMBERS, field)) return NUMBERS[field] ?? null;
  if (!field.startsWith(COMPONENT) || field === COMPONENT) return null;
  const name = field.slice(COMPONENT.length);
  return ({ reward_components: components }) => (Object.hasOwn(components, name) ? (components[name] ?? null) : null);
}

function invalid(text: string): FloeError {
  return new FloeError(
    'bad_request',
    `--accept ${JSON.stringify(text)} is not a condition; write for instance reward>=1, components.NAME>0, ` +
      `trainable_tokens<=30000, completion_count<=50 or outcome=${outcomeSchema.options.slice(0, 2).join(',')}`,
  );
}
