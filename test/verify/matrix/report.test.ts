import { describe, expect, it } from 'vitest';
import { load, plainRow } from './matrix.ts';

type Report = Readonly<Record<string, unknown>>;
type Outcome = {
  readonly reports: readonly Report[];
  readonly overhead: readonly object[];
  readonly adapters: ReadonlyMap<string, object>;
  readonly cells: ReadonlyMap<string, { title: string }>;
  readonly date: string;
  readonly machine: string;
};
type ReportModule = {
  tableOf(outcome: Outcome): string;
  lastLineOf(reports: readonly Report[]): string;
  jsonOf(outcome: Outcome): Readonly<Record<string, unknown>>;
  documentOf(outcome: Outcome): string;
  progressOf(number: number, total: number, report: Report): string;
};
const report = await load<ReportModule>('report.mjs');
const { parseStat, descendants } = await load<{
  parseStat(pid: number, text: string): object;
  descendants(table: readonly object[], root: number): { pid: number }[];
}>('process-watch.mjs');

const row = plainRow();
const [variant] = row.variants;
const cell = (name: string, changes: object = {}): Report => ({
  row,
  variant,
  dialect: 'gemini',
  cell: name,
  skip: null,
  problems: [],
  mismatches: 0,
  seconds: 1.234,
  kept: null,
  ...changes,
});
const outcome: Outcome = {
  reports: [
    cell('edit'),
    cell('image', { problems: ['reward 0 instead of 1', 'more'], mismatches: 2 }),
    cell('subagent', { skip: 'it has none | never had' }),
  ],
  overhead: [
    {
      label: 'plain',
      dialect: 'gemini',
      samples: 5,
      calls: 4,
      wall_seconds: 1.2,
      first_call_seconds: 0.51,
      cpu_seconds: 0.7,
      peak_rss_mb: 120,
    },
  ],
  adapters: new Map([['plain', { version: '1.0', dialects: ['gemini'], installed: true }]]),
  cells: new Map(['edit', 'image', 'subagent'].map((name) => [name, { title: `about ${name}` }])),
  date: '2026-01-02',
  machine: 'a machine',
};

describe('the report', () => {
  it('ends in the line that scripts read', () => {
    expect(report.lastLineOf(outcome.reports)).toBe('matrix: 1 passed, 1 failed, 1 skipped');
  });

  it('marks each cell in the order of the plan', () => {
    expect(report.tableOf(outcome).split('\n')).toEqual([
      'harness  version  dialect  edit  subagent  image',
      'plain    1.0      gemini   yes   –         FAIL',
    ]);
  });

  it('tells why a cell failed or was left out as it ends', () => {
    const [, failed, skipped] = outcome.reports as [Report, Report, Report];
    expect(report.progressOf(2, 10, failed)).toBe(' 2/10 failed  plain gemini image (1.2 s): reward 0 instead of 1');
    expect(report.progressOf(3, 10, skipped)).toContain('skipped plain gemini subagent: it has none');
  });

  it('has the counts, the mismatches and every cell as JSON', () => {
    expect(report.jsonOf(outcome)).toMatchObject({
      passed: 1,
      failed: 1,
      skipped: 1,
      ledger_mismatches: 2,
      harnesses: { plain: { version: '1.0' } },
      cells: [
        { cell: 'edit', state: 'passed', reason: null },
        { cell: 'image', state: 'failed', problems: ['reward 0 instead of 1', 'more'] },
        { cell: 'subagent', state: 'skipped', reason: 'it has none | never had' },
      ],
    });
  });

  it('names the cells together that are left out for one reason', () => {
    const skip = 'floe has no harness plain';
    const reports = ['edit', 'image'].flatMap((name) => [cell(name, { skip }), cell(name, { skip, dialect: 'x' })]);
    const text = report.documentOf({ ...outcome, reports: [...reports, cell('subagent', { skip })] });
    expect(text).toContain(`| plain | \`edit\`, \`image\` | gemini, x | ${skip} |`);
    expect(text).toContain(`| plain | \`subagent\` | gemini | ${skip} |`);
  });

  it('writes a document with the table, the reasons and the figures', () => {
    const text = report.documentOf(outcome);
    expect(text).toContain('on 2026-01-02, on a machine');
    expect(text).toContain('| plain | 1.0 | gemini | yes | – | FAIL |');
    expect(text).toContain('| plain | `subagent` | gemini | it has none \\| never had |');
    expect(text).toContain('| plain | gemini | 5 | 4 | 1.20 | 0.51 | 0.70 | 120 |');
    expect(text).toContain('| `image` | about image |');
  });
});

describe('the process watch', () => {
  const FIELDS = 'S 7 1 1 0 -1 0 0 0 0 0 11 5 30 4 20 0 1 0 987 1000 3 18446744073709551615';

  it('reads a process whose name has brackets and blanks', () => {
    expect(parseStat(42, `42 (a) S (b c) ${FIELDS}\n`)).toEqual({
      pid: 42,
      parent: 7,
      cpuTicks: 16,
      endedCpuTicks: 34,
      startTicks: 987,
      residentBytes: 3 * 4096,
    });
  });

  it('finds what descends from a process, and nothing else', () => {
    const table = [
      { pid: 2, parent: 1 },
      { pid: 3, parent: 2 },
      { pid: 4, parent: 3 },
      { pid: 5, parent: 1 },
    ];
    expect(
      descendants(table, 2)
        .map(({ pid }) => pid)
        .sort(),
    ).toEqual([3, 4]);
  });
});
