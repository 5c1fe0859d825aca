// What every bench prints: a table for people, and with --json one object as the last line.
import { execFileSync } from 'node:child_process';
import { cpus, totalmem } from 'node:os';

export function machine() {
  let commit = 'unknown';
  try {
    commit = execFileSync('git', ['rev-parse', '--short', 'HEAD'], { encoding: 'utf8' }).trim();
    if (execFileSync('git', ['status', '--porcelain', 'src'], { encoding: 'utf8' }) !== '') commit += '+changes';
  } catch {
    // Not a git checkout.
  }
  const [cpu] = cpus();
  return {
    cpu: cpu?.model ?? 'unknown',
    cores: cpus().length,
    memory_gib: Math.round(totalmem() / 2 ** 30),
    node: process.version,
    commit,
  };
}

export function median(values) {
  return percentile(values, 0.5);
}

export function percentile(values, share) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
}

export function printReport(title, rows, keys) {
  const where = machine();
  const width = Math.max(...rows.map(([name]) => name.length));
  console.log(`\n${title}\n${where.cpu}, ${where.cores} cores, Node ${where.node}, commit ${where.commit}\n`);
  for (const [name, value, remark = ''] of rows)
    console.log(`${name.padEnd(width)}  ${String(value).padStart(10)}  ${remark}`);
  if (process.argv.includes('--json')) console.log(JSON.stringify({ ...keys, machine: where }));
}

export const round = (value, digits = 2) => Number(value.toFixed(digits));
