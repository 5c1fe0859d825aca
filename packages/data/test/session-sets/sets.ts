import type { ChatMessage, Trace } from '@floe-rl/core/schema';
import { parseCondition } from '../../src/generation/acceptance-conditions.ts';
import type { Manifest } from '../../src/session-sets/manifest.ts';
import { readSessions } from '../../src/session-sets/read-set.ts';
import type { SetRow } from '../../src/session-sets/set-row.ts';
import { type SetOptions, writeSet } from '../../src/session-sets/write-set.ts';
import { resultWith, traceOf } from '../generation/results.ts';

const AUDIT = {
  tokens: { sampled: 2, trained: 2, excluded: {}, constrained: 0 },
  completions: { recorded: 1, trained: 1, excluded: {} },
  links: { exact: 0, rerendered: 0, fork: 0, root: 1 },
  drift: {},
  exact_context_share: 1,
  context_images: 0,
  rendered_for_images: 0,
  context_special_tokens: 0,
};

/** Returns the row of a session with these traces, changed by `fields`. */
export function setRow(fields: Partial<SetRow> = {}, traces: readonly Trace[] = [traceOf()]): SetRow {
  const { trajectory, ...summary } = resultWith(traces);
  return {
    ...summary,
    audit: AUDIT,
    trajectory: trajectory === null ? null : { ...trajectory, audit: AUDIT },
    origin: null,
    ...fields,
  };
}

/** Returns a trace of a prompt, and the messages of a response. */
export function dialogue(response: readonly ChatMessage[], fields: Partial<Trace> = {}): Trace {
  return traceOf({ response_messages: [...response], ...fields });
}

async function* yielded<T>(values: readonly T[]): AsyncGenerator<T> {
  yield* values;
}

/** Writes a set in the format `sessions` as JSON lines, changed by `fields`. */
export function write(dir: string, rows: readonly SetRow[], fields: Partial<SetOptions> = {}): Promise<Manifest> {
  return writeSet(yielded(rows), {
    dir,
    format: 'sessions',
    encoding: 'jsonl',
    split: null,
    splitKey: 'task_id',
    conditions: [parseCondition('reward>=1')],
    by: 'metadata.repo',
    minMargin: 0,
    skipped: () => ({}),
    ...fields,
  });
}

export async function readAll(path: string): Promise<SetRow[]> {
  const rows: SetRow[] = [];
  for await (const row of readSessions(path)) rows.push(row);
  return rows;
}
