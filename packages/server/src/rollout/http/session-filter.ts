import { phrasesOf } from '@floe-rl/core/protocol';
import { measureKindSchema, outcomeSchema, unusableReasonSchema } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { FactFilter, FactNumberColumn, FactOrder, FactTextColumn } from '../../store/index.ts';

/** The value in a list of values that selects sessions without one. */
const NONE = 'none';
/** Maximum number of values of one filter. */
const MAX_VALUES = 200;

const MAX_TIME_SECONDS = 8.64e12;
/** Maximum absolute value of a limit. No reward is greater. */
const MAX_NUMBER = 1e15;
/** Maximum of numbers that the database stores in 32 bits. */
const MAX_AMOUNT = 2_147_483_647;

/**
 * Parses a comma-separated list of values. When `nullable` is true, the entry `none` becomes `null`, which selects sessions that have no
 * value.
 */
function listOf<Value extends string>(value: z.ZodType<Value, string>, nullable: boolean) {
  const entry = nullable ? z.union([z.literal(NONE), value]) : value;
  return z
    .string()
    .transform((text) => text.split(','))
    .pipe(z.array(entry).min(1).max(MAX_VALUES))
    .transform((values: readonly string[]) => values.map((one) => (nullable && one === NONE ? null : one)));
}

const name = z
  .string()
  .min(1, 'must be a comma-separated list of values without empty ones')
  .max(256)
  .refine((text) => !text.includes('\0'), 'must not contain a NUL character');

const decimal = z
  .string()
  .regex(/^-?[0-9]{1,16}(\.[0-9]{1,16})?([eE][+-]?[0-9]{1,3})?$/, 'must be a number')
  .transform(Number)
  .refine((number) => Math.abs(number) <= MAX_NUMBER, `must be at most ${MAX_NUMBER}`);

const amount = decimal.refine((number) => Math.abs(number) <= MAX_AMOUNT, `must be at most ${MAX_AMOUNT}`);

/** A point in time, as ISO 8601 with a time zone, or as Unix time in seconds. The value is Unix time in milliseconds, rounded up. */
const time = z
  .string()
  .refine((text) => timeOf(text) !== null, 'must be an ISO 8601 time with a time zone, or Unix time in seconds')
  .transform((text) => timeOf(text) ?? 0);

function timeOf(text: string): number | null {
  if (/^[0-9]{1,13}(\.[0-9]{1,9})?$/.test(text)) {
    const seconds = Number(text);
    return seconds <= MAX_TIME_SECONDS ? Math.ceil(seconds * 1000) : null;
  }
  const parsed = z.iso.datetime({ offset: true }).safeParse(text);
  return parsed.success ? Date.parse(parsed.data) : null;
}

/** A comma-separated list of measures, each as its kind and its name with a colon between them. */
const measured = listOf(z.string().regex(/^[a-z]+:./s, 'must be kind:name, such as tool:bash'), false).transform(
  (texts, context) =>
    texts.map((text) => {
      const [kind = '', name = ''] = [text?.slice(0, text.indexOf(':')), text?.slice(text.indexOf(':') + 1)];
      const known = measureKindSchema.safeParse(kind);
      if (!known.success) context.addIssue({ code: 'custom', message: `has the unknown kind ${kind}` });
      return { kind: known.data ?? 'tool', name };
    }),
);

const least = (what: string, number = decimal) =>
  number.optional().describe(`only sessions with at least this ${what}`);
const most = (what: string, number = decimal) => number.optional().describe(`only sessions with at most this ${what}`);

/** Query parameters that select ended sessions. */
const sessionFilterFields = {
  task: listOf(name, false).optional().describe('ids of tasks'),
  trainer: listOf(name, false).optional(),
  harness: listOf(name, false).optional(),
  agent: listOf(name, true).optional().describe('agents of the harness `floe`'),
  source: listOf(name, true).optional().describe('values of `metadata.data_source`'),
  split: listOf(name, true).optional().describe('values of `metadata.split`'),
  outcome: listOf(outcomeSchema, false).optional(),
  unusable: listOf(unusableReasonSchema, true).optional().describe('why samples cannot be trained on'),
  version: listOf(name, true).optional().describe('policy versions of the last sampled token'),
  dialect: listOf(name, true).optional().describe('dialects of the model calls; `several` for more than one'),
  engine: listOf(name, true).optional().describe('kinds of engines, such as `vllm`; `several` for more than one'),
  node: listOf(name, true).optional(),
  measure: measured
    .optional()
    .describe(
      'only sessions that have one of these measures, as `kind:name`, such as `drift:rewritten` or `tool:bash`',
    ),
  text: z
    .string()
    .max(512)
    .transform(phrasesOf)
    .refine((phrases) => phrases.length > 0, 'must have a letter or a digit')
    .optional()
    .describe('words that the messages have, all of them; words between double quotes follow each other'),
  usable: z
    .enum(['true', 'false'])
    .transform((text) => text === 'true')
    .optional()
    .describe('whether the samples can be trained on'),
  min_reward: least('reward'),
  max_reward: most('reward'),
  min_turns: least('number of turns', amount),
  max_turns: most('number of turns', amount),
  min_tokens: least('number of sampled tokens', amount),
  max_tokens: most('number of sampled tokens', amount),
  min_seconds: least('time from the lease to the result'),
  max_seconds: most('time from the lease to the result'),
  since: time.optional().describe('only sessions that ended at this time or later: ISO 8601, or Unix time in seconds'),
  until: time.optional().describe('only sessions that ended before this time'),
};

/** The orders of a list of ended sessions, by the names that requests use. */
export const ORDERS = {
  newest: { by: 'fact_no', descending: true },
  oldest: { by: 'fact_no', descending: false },
  reward: { by: 'reward', descending: false },
  '-reward': { by: 'reward', descending: true },
  turns: { by: 'turns', descending: false },
  '-turns': { by: 'turns', descending: true },
  tokens: { by: 'sampled_tokens', descending: false },
  '-tokens': { by: 'sampled_tokens', descending: true },
  seconds: { by: 'total_ms', descending: false },
  '-seconds': { by: 'total_ms', descending: true },
} as const satisfies Record<string, FactOrder>;

export type OrderName = keyof typeof ORDERS;

export const sessionOrder = z.enum(Object.keys(ORDERS) as [OrderName, ...OrderName[]]);

const filterSchema = z.strictObject(sessionFilterFields);
export type SessionFilterQuery = z.output<typeof filterSchema>;

/** The column of each filter of values. */
export const VALUE_COLUMNS = {
  task: 'task_id',
  trainer: 'trainer',
  harness: 'harness',
  agent: 'agent',
  source: 'source',
  split: 'split',
  outcome: 'outcome',
  unusable: 'unusable',
  version: 'version',
  dialect: 'dialect',
  engine: 'engine',
  node: 'node_id',
} as const satisfies Record<string, FactTextColumn>;

/** A field of numbers: its column, and the factor that converts a value of the field to a value of the column. */
type NumberField = { readonly column: FactNumberColumn; readonly scale: number; readonly isWhole: boolean };

export const NUMBER_FIELDS = {
  reward: { column: 'reward', scale: 1, isWhole: false },
  turns: { column: 'turns', scale: 1, isWhole: true },
  tokens: { column: 'sampled_tokens', scale: 1, isWhole: true },
  seconds: { column: 'total_ms', scale: 1000, isWhole: false },
} as const satisfies Record<string, NumberField>;

export type NumberFieldName = keyof typeof NUMBER_FIELDS;

const NUMBER_NAMES = Object.keys(NUMBER_FIELDS) as NumberFieldName[];

/** Creates the query schema of a route that selects ended sessions and has further parameters. A lower limit above the upper one is refused. */
export function filteredQuery<Fields extends z.ZodRawShape>(fields: Fields) {
  return z.strictObject({ ...sessionFilterFields, ...fields }).superRefine((query, context) => {
    const given = query as SessionFilterQuery;
    const refuse = (lower: string, upper: string, low: number | undefined, high: number | undefined): void => {
      if (low === undefined || high === undefined || low <= high) return;
      context.addIssue({ code: 'custom', path: [lower], message: `is greater than ${upper}` });
    };
    for (const field of NUMBER_NAMES) {
      refuse(`min_${field}`, `max_${field}`, given[`min_${field}`], given[`max_${field}`]);
    }
    refuse('since', 'until', given.since, given.until);
  });
}

/** Returns the filter of a checked query. Parameters that select nothing are ignored. */
export function filterOf(query: SessionFilterQuery): FactFilter {
  const values: Partial<Record<FactTextColumn, readonly (string | null)[]>> = {};
  for (const [field, column] of Object.entries(VALUE_COLUMNS)) {
    const wanted = query[field as keyof typeof VALUE_COLUMNS];
    if (wanted !== undefined) values[column] = wanted;
  }
  const ranges: Partial<Record<FactNumberColumn, { min?: number; max?: number }>> = {};
  for (const field of NUMBER_NAMES) {
    const [min, max] = [query[`min_${field}`], query[`max_${field}`]];
    const { column, scale, isWhole } = NUMBER_FIELDS[field];
    if (min === undefined && max === undefined) continue;
    ranges[column] = {
      ...(min === undefined ? {} : { min: isWhole ? Math.ceil(min) : min * scale }),
      ...(max === undefined ? {} : { max: isWhole ? Math.floor(max) : max * scale }),
    };
  }
  return {
    values,
    ranges,
    usable: query.usable ?? null,
    ...(query.measure === undefined ? {} : { measures: query.measure }),
    ...(query.text === undefined ? {} : { phrases: query.text }),
    sinceMs: query.since ?? null,
    untilMs: query.until ?? null,
  };
}
