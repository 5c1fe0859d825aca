// Prints the results of a bench as a table. With --json, the last line is one JSON object with the results.
import { execFileSync } from 'node:child_process';
import { cpus, totalmem } from 'node:os';

/** The machine and the commit of floe that the values of a report were measured on. */
export type Machine = {
  readonly cpu: string;
  readonly cores: number;
  readonly memory_gib: number;
  readonly node: string;
  /** Short hash of the commit. `+changes` is appended when `packages/` contains uncommitted changes. */
  readonly commit: string;
};

export function machine(): Machine {
  const [cpu] = cpus();
  return {
    cpu: cpu?.model ?? 'unknown',
    cores: cpus().length,
    memory_gib: Math.round(totalmem() / 2 ** 30),
    node: process.version,
    commit: commit(),
  };
}

function commit(): string {
  try {
    const head = execFileSync('git', ['rev-parse', '--short', 'HEAD'], { encoding: 'utf8' }).trim();
    const changes = execFileSync('git', ['status', '--porcelain', 'packages'], { encoding: 'utf8' });
    return changes === '' ? head : `${head}+changes`;
  } catch {
    // git fails when the files are not in a git checkout.
    return 'unknown';
  }
}

/**
 * Returns the median of `values`; `null` when there are no values. For an even number of values it is the mean of the two middle values.
 */
export function median(values: readonly number[]): number | null {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.slice((sorted.length - 1) >> 1, (sorted.length >> 1) + 1);
  return sorted.length === 0 ? null : middle.reduce((sum, value) => sum + value, 0) / middle.length;
}

/** Returns the value below which the share `share` (0 to 1) of all values lies; `null` when there are no values. */
export function percentile(values: readonly number[], share: number): number | null {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? null;
}

/** The median, least and greatest ratio of values that were measured in pairs. */
export type PairedRatio = { readonly median: number; readonly least: number; readonly greatest: number };

/**
 * Returns the ratios of `values` to the values of `base` with the same index; `null` when there is no pair. Both are measured in turns, so
 * that a slow moment of the machine affects both values of a pair.
 */
export function pairedRatio(values: readonly number[], base: readonly number[]): PairedRatio | null {
  const ratios = values.slice(0, base.length).map((value, i) => value / (base[i] ?? Number.NaN));
  const middle = median(ratios);
  return middle === null ? null : { median: middle, least: Math.min(...ratios), greatest: Math.max(...ratios) };
}

/** One row of a report: the name of a measured value, the value, and an optional remark. */
export type ReportRow = readonly [name: string, value: string | number, remark?: string];

/** Results of one part of the bench: values for the JSON report, by key, and rows for the printed table. */
export type Part = { readonly keys: Readonly<Record<string, number | null>>; readonly rows: readonly ReportRow[] };

/** Prints the rows of a report as a table. With `--json` on the command line, also prints `keys` and the machine as one line of JSON. */
export function printReport(title: string, rows: readonly ReportRow[], keys: Readonly<Record<string, unknown>>): void {
  const where = machine();
  const width = Math.max(...rows.map(([name]) => name.length));
  console.log(`\n${title}\n${where.cpu}, ${where.cores} cores, Node ${where.node}, commit ${where.commit}\n`);
  for (const [name, value, remark = ''] of rows) {
    console.log(`${name.padEnd(width)}  ${String(value).padStart(10)}  ${remark}`);
  }
  if (process.argv.includes('--json')) console.log(JSON.stringify({ ...keys, machine: where }));
}

export function round(value: number, digits = 2): number {
  return Number(value.toFixed(digits));
}
