import type { SessionFilter } from '@floe-rl/client';
import { FloeError } from '@floe-rl/core';

type Fields = keyof SessionFilter;

const LISTS = [
  'task',
  'trainer',
  'harness',
  'agent',
  'source',
  'split',
  'outcome',
  'unusable',
  'version',
  'dialect',
  'engine',
  'node',
  'measure',
] as const;
const NUMBERS = {
  min_reward: 'minReward',
  max_reward: 'maxReward',
  min_turns: 'minTurns',
  max_turns: 'maxTurns',
  min_tokens: 'minTokens',
  max_tokens: 'maxTokens',
  min_seconds: 'minSeconds',
  max_seconds: 'maxSeconds',
} as const satisfies Readonly<Record<string, Fields>>;
const TIMES = ['since', 'until'] as const;

/** The names that `--where` takes, which are the query parameters of `GET /sessions`. */
const WHERE_NAMES = [...LISTS, ...Object.keys(NUMBERS), 'usable', 'text', ...TIMES];

/**
 * Parses filters such as `outcome=completed,truncated_turns` and `min_reward=0.5`. Throws `bad_request` for another name, a value of the wrong
 * type and a name that occurs twice. The server checks the values of lists.
 */
export function parseWhere(texts: readonly string[]): SessionFilter {
  const filter: Record<string, unknown> = {};
  for (const text of texts) {
    const [field, value] = parseOne(text);
    if (Object.hasOwn(filter, field))
      throw new FloeError('bad_request', `--where ${text}: write all values in one: a,b`);
    filter[field] = value;
  }
  return filter as SessionFilter;
}

function parseOne(text: string): [Fields, unknown] {
  const at = text.indexOf('=');
  const name = text.slice(0, Math.max(at, 0));
  const value = text.slice(at + 1);
  const list = LISTS.find((known) => known === name);
  if (list !== undefined) return [list, value.split(',').map((part) => (part === 'none' ? null : part))];
  if (Object.hasOwn(NUMBERS, name)) {
    return [NUMBERS[name as keyof typeof NUMBERS], checked(text, Number(value), value.trim() !== '', 'a number')];
  }
  if (name === 'text') return ['text', value];
  if (name === 'usable')
    return ['usable', checked(text, value === 'true', /^(true|false)$/.test(value), 'true or false')];
  const time = TIMES.find((known) => known === name);
  if (time !== undefined) {
    const date = new Date(/^\d+(\.\d+)?$/.test(value) ? Number(value) * 1000 : value);
    const isTime = !Number.isNaN(date.getTime()) && /^\d+(\.\d+)?$|(Z|[+-]\d\d:?\d\d)$/.test(value);
    return [time, checked(text, date, isTime, 'a time in ISO 8601 with a time zone, or Unix time in seconds')];
  }
  throw new FloeError('bad_request', `--where ${text}: write NAME=VALUE; the names are ${WHERE_NAMES.join(', ')}`);
}

function checked<T>(text: string, value: T, isValid: boolean, kind: string): T {
  if (isValid && !Number.isNaN(value)) return value;
  throw new FloeError('bad_request', `--where ${text}: the value is not ${kind}`);
}
