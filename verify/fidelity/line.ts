import { z } from 'zod';
import { tableOf } from '../runner/report.ts';

/** Token and session counts of a measurement, in the form in which test/fidelity writes them. */
export const measureSchema = z.looseObject({
  sessions: z.number(),
  completions: z.number(),
  traces: z.number(),
  sampled: z.number(),
  trained: z.number(),
  exact: z.number(),
  mismatches: z.number(),
  trained_twice: z.number(),
  unaccounted: z.number(),
  unknown_version: z.number(),
  stale_context: z.number(),
});

/** One row of the result table: the counts of one harness with one way to capture completions and build traces. */
export type Line = z.infer<typeof measureSchema> & {
  readonly harness: string;
  readonly mode: string;
  /**
   * Whether this row's tokens are added to the totals. It is `false` for a row that builds the traces of another row's sessions in a second
   * way, because these tokens would be counted twice.
   */
  readonly counted: boolean;
};

export function emptyLine(harness: string, mode: string): Line {
  const zero = { sessions: 0, completions: 0, traces: 0, sampled: 0, trained: 0, exact: 0 };
  const wrong = { mismatches: 0, trained_twice: 0, unaccounted: 0, unknown_version: 0, stale_context: 0 };
  return { harness, mode, counted: true, ...zero, ...wrong };
}

/** Returns the rows as a Markdown table. */
export function tableOfLines(lines: readonly Line[]): string {
  const head = [
    ...['harness', 'captured and built', 'sessions', 'sampled', 'trained', 'exact context', 'traces a session'],
    'without a version',
  ];
  const rows = lines.map((line) => [
    line.harness,
    line.mode,
    String(line.sessions),
    String(line.sampled),
    percent(line.trained, line.sampled),
    percent(line.exact, line.trained),
    (line.traces / Math.max(1, line.sessions)).toFixed(1),
    percent(line.unknown_version, line.trained),
  ]);
  return tableOf(head, rows);
}

function percent(part: number, whole: number): string {
  return whole === 0 ? '–' : `${((100 * part) / whole).toFixed(part === whole ? 0 : 1)} %`;
}

/** Returns, by harness and mode, the share of trained tokens whose context in the trace equals the context in which they were sampled. */
export function exactShares(lines: readonly Line[]): Record<string, Record<string, number | null>> {
  const shares: Record<string, Record<string, number | null>> = {};
  for (const { harness, mode, exact, trained } of lines) {
    shares[harness] = { ...shares[harness], [mode]: trained === 0 ? null : exact / trained };
  }
  return shares;
}
