// What every bench prints: a table for people, and with --json one object as the last line.
import { execFileSync } from 'node:child_process';
import { cpus, totalmem } from 'node:os';

/** Where and of what a figure was measured. */
export type Machine = {
  readonly cpu: string;
  readonly cores: number;
  readonly memory_gib: number;
  readonly node: string;
  /** The short commit; `+changes` follows when `src/` differs from it. */
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
    const changes = execFileSync('git', ['status', '--porcelain', 'src'], { encoding: 'utf8' });
    return changes === '' ? head : `${head}+changes`;
  } catch {
    // This is not a git checkout.
    return 'unknown';
  }
}

/** `null` for no values. */
export function median(values: readonly number[]): number | null {
  return percentile(values, 0.5);
}

/** The value below which `share` (0 to 1) of the values lie; `null` for no values. */
export function percentile(values: readonly number[], share: number): number | null {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? null;
}

/** One line of a report: a name, its value, and a remark. */
export type ReportRow = readonly [name: string, value: string | number, remark?: string];

/** Prints the rows as a table and, with `--json` on the command line, `keys` and the machine as the last line. */
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
