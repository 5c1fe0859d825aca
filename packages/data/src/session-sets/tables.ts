import { FloeError } from '@floe-rl/core';
import { type Trace, type Trajectory, traceSchema } from '@floe-rl/core/schema';
import type { z } from 'zod';
import type { Cell, ColumnKind, Columns, TableRow } from './columns.ts';
import { type SetRow, setRowSchema } from './set-row.ts';

/** Fields of `T` that are a text, a number or a list of numbers. */
type PlainField<T> = {
  [K in keyof T]-?: NonNullable<T[K]> extends string | number | readonly number[] ? K : never;
}[keyof T];

/**
 * The kinds of a session's columns. Every field that is a text or a number is named; other fields are JSON texts. The kind `json` keeps every
 * text of an agent or a task exactly.
 */
const SESSION_FIELDS = {
  session_id: 'text',
  task_id: 'text',
  sample_index: 'int32',
  attempt: 'int32',
  epoch: 'int32',
  status: 'text',
  outcome: 'text',
  reward: 'float64',
  unusable: 'text',
  dropped: 'json',
  trace_count: 'int32',
  trainable_tokens: 'int32',
  completion_count: 'int32',
  node_id: 'json',
} as const satisfies Columns & Record<PlainField<SetRow>, ColumnKind>;

/** The kinds of the columns of a trace, in the same way. */
const TRACE_FIELDS = {
  trace_id: 'text',
  prompt_ids: 'ids',
  response_ids: 'ids',
  loss_mask: 'mask',
  response_logprobs: 'logprobs',
  finish_reason: 'text',
  reward: 'float64',
} as const satisfies Columns & Record<PlainField<Trace>, ColumnKind>;

/**
 * The two tables of a set in Parquet. A session is one row of `sessions` and one row of `traces` for each of its traces, in the same order. Every
 * field of a result is a column.
 */
export const SESSION_COLUMNS: Columns = {
  ...columnsOf(setRowSchema, SESSION_FIELDS),
  // Number of rows in the table of traces. `trajectory` is without its traces.
  traces: 'int32',
};

export const TRACE_COLUMNS: Columns = {
  session_id: 'text',
  task_id: 'text',
  trace_index: 'int32',
  ...columnsOf(traceSchema, TRACE_FIELDS),
};

function columnsOf({ shape }: z.ZodObject, fields: Columns): Columns {
  return Object.fromEntries(Object.keys(shape).map((name) => [name, fields[name] ?? 'json']));
}

/** Fields that are absent when they have no value. All other fields are `null` when they have no value. */
const ABSENT: ReadonlySet<string> = new Set(
  [setRowSchema, traceSchema].flatMap(({ shape }) =>
    Object.entries(shape).flatMap(([name, field]) => (field.safeParse(null).success ? [] : [name])),
  ),
);

/** Returns the row of a session in the table `sessions`. */
export function sessionCells({ trajectory, ...summary }: SetRow): TableRow {
  const { traces, ...rest } = trajectory ?? { traces: [] };
  const fields = { ...summary, trajectory: trajectory === null ? null : rest, traces: traces.length };
  return cellsOf(SESSION_COLUMNS, fields);
}

/** Returns the rows of a session in the table `traces`. */
export function traceCells({ session_id, task_id, trajectory }: SetRow): TableRow[] {
  return (trajectory?.traces ?? []).map((trace, index) =>
    cellsOf(TRACE_COLUMNS, { session_id, task_id, trace_index: index, ...trace }),
  );
}

/**
 * Returns the cells of a row for its fields. Throws `unsupported` for a field that has no column, such as a field of a newer server, because
 * its value would be lost.
 */
function cellsOf(columns: Columns, fields: Readonly<Record<string, unknown>>): TableRow {
  const unknown = Object.keys(fields).find((name) => !Object.hasOwn(columns, name));
  if (unknown !== undefined) {
    throw new FloeError(
      'unsupported',
      `there is no column for the field ${unknown}; export JSON lines, or update floe`,
    );
  }
  const cells: [string, Cell][] = Object.keys(columns).map((name) => {
    const value = fields[name] ?? null;
    return [name, columns[name] === 'json' && value !== null ? JSON.stringify(value) : (value as Cell)];
  });
  return Object.fromEntries(cells);
}

/** Makes the value of a session from its rows in both tables. It is not checked. Throws `corrupt_record` for a text that is not JSON. */
export function sessionValue(session: TableRow, traces: readonly TableRow[]): Readonly<Record<string, unknown>> {
  const { trajectory, traces: _, ...summary } = valuesOf(SESSION_COLUMNS, session);
  return {
    ...summary,
    trajectory: trajectory === null ? null : { ...(trajectory as Trajectory), traces: traces.map(traceValue) },
  };
}

function traceValue(row: TableRow): Trace {
  const { session_id: _, task_id: __, trace_index: ___, ...trace } = valuesOf(TRACE_COLUMNS, row);
  return trace as Trace;
}

function valuesOf(columns: Columns, row: TableRow): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(row).flatMap(([name, cell]) => {
      if (cell === null && ABSENT.has(name)) return [];
      return [[name, columns[name] === 'json' && typeof cell === 'string' ? parsed(cell, name) : cell]];
    }),
  );
}

function parsed(text: string, name: string): unknown {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new FloeError('corrupt_record', `the column ${name} has a text that is not JSON`, { column: name }, cause);
  }
}
