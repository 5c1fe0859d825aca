import { type FloeError, fieldError, parseAs } from '@floe-rl/core';
import {
  type SessionFacts,
  sessionResultSchema,
  type Trace,
  traceSchema,
  trajectorySchema,
} from '@floe-rl/core/schema';
import { z } from 'zod';

/** Facts about the task of a session. A set keeps them because the result does not contain them. */
const originSchema = z.strictObject({
  trainer: z.string(),
  harness: z.string(),
  agent: z.string().nullable(),
  source: z.string().nullable().describe('`metadata.data_source` of the task'),
  split: z.string().nullable().describe('`metadata.split` of the task'),
  ended_at: z.string(),
});

/** Largest token id: trainers and Arrow columns have ids as int32. */
const MAX_TOKEN_ID = 2 ** 31 - 1;

/** Returns the schema of a list of numbers. A loop checks it, because a schema for each element takes longer than reading the file. */
function numbers(isValid: (value: number) => boolean, kind: string): z.ZodType<number[]> {
  return z.custom<number[]>(
    (value) => Array.isArray(value) && value.every((one) => typeof one === 'number' && isValid(one)),
    `must be a list of ${kind}`,
  );
}

const tokenIds = numbers((id) => Number.isInteger(id) && id >= 0 && id <= MAX_TOKEN_ID, 'token ids');

const setTrajectorySchema = trajectorySchema.extend({
  traces: z.array(
    traceSchema.extend({
      prompt_ids: tokenIds,
      response_ids: tokenIds,
      loss_mask: numbers((bit) => bit === 0 || bit === 1, '0 and 1'),
      response_logprobs: numbers(Number.isFinite, 'numbers'),
    }),
  ),
});

/** One ended session of a set: its result with all traces. `origin` is `null` for a session that was read from a file of results. */
export const setRowSchema = sessionResultSchema
  .omit({ cursor: true })
  .extend({ trajectory: setTrajectorySchema.nullable(), origin: originSchema.nullable().default(null) });
export type SetRow = z.output<typeof setRowSchema>;

export function originOf(facts: SessionFacts): SetRow['origin'] {
  const { trainer, harness, agent, source, split, ended_at } = facts;
  return { trainer, harness, agent, source, split, ended_at };
}

/**
 * Checks a value that was read from a file. `where` is its place, such as `results.jsonl:3`. Throws `schema_violation` with the place and the
 * field when a field is missing or of the wrong type, or when the arrays of a trace differ in length. An unknown field is an error too,
 * because floe would otherwise lose its value without notice.
 */
export function parseSetRow(value: unknown, where: string): SetRow {
  const { cursor: _, ...fields } = Object(value) as Record<string, unknown>;
  const row = parseAs(setRowSchema, fields, where);
  const unknown = unknownField(fields, row);
  if (unknown !== null) throw invalid(where, unknown, 'is a field that this version of floe does not know');
  for (const [index, trace] of (row.trajectory?.traces ?? []).entries()) {
    const problem = traceProblem(trace);
    if (problem !== null) throw invalid(where, `trajectory.traces.${index}.${problem.field}`, problem.message);
  }
  return row;
}

function invalid(where: string, path: string, message: string): FloeError {
  return fieldError(path, message, { input: where });
}

function traceProblem(trace: Trace): { readonly field: keyof Trace; readonly message: string } | null {
  const length = trace.response_ids.length;
  for (const field of ['loss_mask', 'response_logprobs'] as const) {
    if (trace[field].length !== length) {
      return { field, message: `has ${trace[field].length} entries for ${length} response_ids` };
    }
  }
  return null;
}

/** Returns the path of the first field of `value` that the schema removed; `null` when `parsed` has all fields. */
function unknownField(value: unknown, parsed: unknown, path = ''): string | null {
  if (typeof value !== 'object' || value === null || typeof parsed !== 'object' || parsed === null) return null;
  // Lists of numbers have no fields, and checking the hundreds of thousands of numbers of a session would take time.
  if (Array.isArray(value) && typeof value[0] === 'number') return null;
  for (const [key, member] of Object.entries(value)) {
    const place = path === '' ? key : `${path}.${key}`;
    if (!Object.hasOwn(parsed, key)) return place;
    const found = unknownField(member, (parsed as Record<string, unknown>)[key], place);
    if (found !== null) return found;
  }
  return null;
}

/**
 * Returns a row as one line of JSON without a newline. A log-probability of -0, which engines report for a certain token, stays -0, although
 * `JSON.stringify` writes it as 0.
 */
export function rowText(row: SetRow): string {
  const { trajectory, ...summary } = row;
  if (trajectory === null || !trajectory.traces.some(hasNegativeZero)) return JSON.stringify(row);
  const { traces, ...rest } = trajectory;
  const before = JSON.stringify(summary).slice(0, -1);
  const inside = JSON.stringify(rest).slice(0, -1);
  return `${before},"trajectory":${inside},"traces":[${traces.map(traceText).join(',')}]}}`;
}

function hasNegativeZero({ response_logprobs: logprobs }: Trace): boolean {
  return logprobs.some((value) => Object.is(value, -0));
}

function traceText({ response_logprobs: logprobs, ...trace }: Trace): string {
  const numbers = logprobs.map((value) => (Object.is(value, -0) ? '-0' : String(value)));
  return `${JSON.stringify(trace).slice(0, -1)},"response_logprobs":[${numbers.join(',')}]}`;
}
