// Formats the output of a matrix run: lines of progress, a table, docs/measurements/compatibility.md and JSON. All functions are pure.
import { columnsOf, tableOf as markdownTable } from '../runner/report.ts';
import type { Cell, CellReport, MatrixMode } from './cell.ts';
import { type Adapter, CELL_NAMES, type CellName, type PlannedCell } from './plan.ts';

/** A planned cell of the matrix (test case, harness variant and dialect) together with its result. */
export type Report = PlannedCell & Pick<CellReport, 'problems' | 'mismatches' | 'seconds' | 'kept'>;

/**
 * Medians of the measurements of several sessions with one harness variant in one dialect. The field names are also keys of the JSON
 * report.
 */
export type Overhead = {
  readonly label: string;
  readonly dialect: string;
  readonly samples: number;
  readonly calls: number;
  readonly wall_seconds: number;
  readonly first_call_seconds: number;
  readonly cpu_seconds: number;
  readonly peak_rss_mb: number;
};

/** All results of a matrix run, from which the printed table and the document are made. */
export type RunOutcome = {
  readonly mode: MatrixMode;
  readonly reports: readonly Report[];
  readonly overhead: readonly Overhead[];
  /** floe's harness adapters, by harness name. An adapter is the code that runs a harness. */
  readonly adapters: ReadonlyMap<string, Adapter>;
  readonly cells: Readonly<Record<CellName, Pick<Cell, 'title'>>>;
  /** Date of the run as YYYY-MM-DD. */
  readonly date: string;
  /** Description of the machine: platform, number of cores, memory and Node version, without its host name. */
  readonly machine: string;
};

export type CellState = 'passed' | 'failed' | 'skipped';

const MARKS: Readonly<Record<CellState, string>> = { passed: 'yes', failed: 'FAIL', skipped: '–' };

export function stateOf({ skip, problems }: Report): CellState {
  if (skip !== null) return 'skipped';
  return problems.length === 0 ? 'passed' : 'failed';
}

/** Returns the line that is printed when test case `number` of `total` ends. */
export function progressOf(number: number, total: number, report: Report): string {
  const { variant, dialect, cell, skip, seconds, problems } = report;
  const state = stateOf(report);
  const what = `${String(number).padStart(String(total).length)}/${total} ${state.padEnd(7)} ${variant.label} ${dialect} ${cell}`;
  if (state === 'skipped') return `${what}: ${skip}`;
  const [problem = ''] = problems;
  return `${what} (${seconds.toFixed(1)} s)${state === 'failed' ? `: ${problem.split('\n')[0]}` : ''}`;
}

/** A row of the printed table: the results of one variant of a harness in one dialect. */
type Line = {
  readonly label: string;
  readonly version: string | null;
  readonly dialect: string;
  readonly cells: Map<CellName, Report>;
};

/** Returns the rows of the table, in the order in which the test cases ran. */
function linesOf({ reports, adapters }: RunOutcome): Line[] {
  const lines = new Map<string, Line>();
  for (const report of reports) {
    const { row, variant, dialect, cell } = report;
    const key = `${variant.label}\n${dialect}`;
    const line = lines.get(key) ?? {
      label: variant.label,
      version: adapters.get(row.harness)?.version ?? null,
      dialect,
      cells: new Map<CellName, Report>(),
    };
    line.cells.set(cell, report);
    lines.set(key, line);
  }
  return [...lines.values()];
}

function cellColumns(reports: readonly Report[]): CellName[] {
  return CELL_NAMES.filter((name) => reports.some(({ cell }) => cell === name));
}

/** Returns the text of each cell of the table, row by row, without the header. */
function tableRows(outcome: RunOutcome): string[][] {
  const columns = cellColumns(outcome.reports);
  return linesOf(outcome).map(({ label, version, dialect, cells }) => [
    label,
    version ?? '–',
    dialect,
    ...columns.map((name) => {
      const report = cells.get(name);
      return report === undefined ? '' : MARKS[stateOf(report)];
    }),
  ]);
}

/** Returns the table of results as plain text with aligned columns. */
export function tableOf(outcome: RunOutcome): string {
  const head = ['harness', 'version', 'dialect', ...cellColumns(outcome.reports)];
  return columnsOf([head, ...tableRows(outcome)], head.length);
}

function countsOf(reports: readonly Report[]): Record<CellState, number> {
  const counts = { passed: 0, failed: 0, skipped: 0 };
  for (const report of reports) counts[stateOf(report)]++;
  return counts;
}

/** Returns the last line that a run prints: the numbers of passed, failed and skipped test cases. */
export function lastLineOf(reports: readonly Report[]): string {
  const { passed, failed, skipped } = countsOf(reports);
  return `matrix: ${passed} passed, ${failed} failed, ${skipped} skipped`;
}

export function jsonOf(outcome: RunOutcome): Readonly<Record<string, unknown>> {
  const { mode, reports, overhead, adapters } = outcome;
  return {
    mode,
    ...countsOf(reports),
    ledger_mismatches: reports.reduce((sum, { mismatches }) => sum + mismatches, 0),
    harnesses: Object.fromEntries(
      [...adapters].map(([name, { version, dialects, installed }]) => [name, { version, dialects, installed }]),
    ),
    cells: reports.map((report) => ({
      harness: report.row.harness,
      variant: report.variant.label,
      dialect: report.dialect,
      cell: report.cell,
      state: stateOf(report),
      reason: report.skip,
      problems: report.problems,
      ledger_mismatches: report.mismatches,
      seconds: Number(report.seconds.toFixed(2)),
    })),
    overhead,
  };
}

/** Returns the Markdown text of docs/measurements/compatibility.md. */
export function documentOf(outcome: RunOutcome): string {
  const { mode, reports, overhead, cells, date, machine } = outcome;
  const columns = cellColumns(reports);
  const head = ['Harness', 'Version', 'Dialect', ...columns.map((name) => `\`${name}\``)];
  return `${[
    '# Compatibility',
    `Generated by \`npm run verify -- matrix\` on ${date}, on ${machine}. Real, unchanged programs in sandboxes, in the versions that floe pins, against the simulated engine in ${mode} mode. A cell is \`yes\` when the harness finished its task (a grader in the sandbox said so), every token of every trace equals the engine's ledger (id, log-probability, version), and every token that the engine sampled is trained or excluded with a reason.`,
    lastLineOf(reports)
      .replace('matrix: ', '')
      .replace(/^./, (first) => first.toUpperCase())
      .concat('.'),
    '## Cells',
    markdown(head, tableRows(outcome)),
    markdown(
      ['Cell', 'What happens'],
      columns.map((name) => [`\`${name}\``, cells[name].title]),
    ),
    ...skipSection(reports),
    ...overheadSection(overhead),
    'How a harness is added: [verify/matrix](../../verify/matrix/README.md).',
  ].join('\n\n')}\n`;
}

/**
 * Returns the section of the document about skipped test cases. Test cases of one harness variant that are skipped in the same dialects for
 * the same reason share one line.
 */
function skipSection(reports: readonly Report[]): string[] {
  type Skipped = { variant: string; skip: string; cell: string; dialect: string };
  const skipped = reports.flatMap(({ variant, skip, cell, dialect }): Skipped[] =>
    skip === null ? [] : [{ variant: variant.label, skip, cell, dialect }],
  );
  if (skipped.length === 0) return [];
  const byCell = groupBy(skipped, ({ variant, skip, cell }) => JSON.stringify([variant, skip, cell])).map((group) => ({
    ...group[0],
    dialects: group.map(({ dialect }) => dialect).join(', '),
  }));
  const byReason = groupBy(byCell, ({ variant, skip, dialects }) => JSON.stringify([variant, skip, dialects]));
  const rows = byReason.map((group) => {
    const [{ variant, skip, dialects }] = group;
    const cells = group.map(({ cell }) => `\`${cell}\``);
    return [variant, cells.length === CELL_NAMES.length ? 'all' : cells.join(', '), dialects, skip];
  });
  return ['## Left out, and why', markdown(['Harness', 'Cells', 'Dialects', 'Reason'], rows)];
}

/** Groups the elements of a list by key, in the order in which the keys first occur. Node 20 does not have `Map.groupBy` yet. */
function groupBy<T>(list: readonly T[], keyOf: (item: T) => string): [T, ...T[]][] {
  const groups = new Map<string, [T, ...T[]]>();
  for (const item of list) {
    const group = groups.get(keyOf(item));
    if (group === undefined) groups.set(keyOf(item), [item]);
    else group.push(item);
  }
  return [...groups.values()];
}

function overheadSection(overhead: readonly Overhead[]): string[] {
  if (overhead.length === 0) return [];
  const rows = overhead.map((line) => [
    line.label,
    line.dialect,
    String(line.samples),
    String(line.calls),
    ...[line.wall_seconds, line.first_call_seconds, line.cpu_seconds].map((seconds) => seconds.toFixed(2)),
    String(line.peak_rss_mb),
  ]);
  return [
    '## What a harness costs besides the model',
    'Medians over sessions of the `edit` cell, one at a time, with an engine that answers at once.',
    markdown(['Harness', 'Dialect', 'Sessions', 'Calls', 'Wall s', 'To first call s', 'CPU s', 'Peak RSS MB'], rows),
    [
      '- Wall: the agent stage, from the start of the program in its sandbox to its end.',
      '- To first call: from the start of the program to the arrival of its first model call at the proxy.',
      "- CPU: user and system time of the harness's processes and the commands that it ran: what the kernel charged to the node's spawn helper for ended children over the session, less the same for a session whose agent does nothing, which is what sandbox, relay and grader cost.",
      '- Peak RSS: largest sum of the resident sizes of these processes, sampled every 25 ms from outside of the sandbox. Pages that processes share count once for each.',
    ].join('\n'),
  ];
}

function markdown(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const escaped = (text: string): string => text.replaceAll('|', '\\|');
  return markdownTable(
    head.map(escaped),
    rows.map((row) => row.map(escaped)),
  );
}
