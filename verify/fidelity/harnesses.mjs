// The real programs, each in the dialect that it speaks first, through two cells of the matrix in each way to capture and build.
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chooseBackend } from '../dist/cli/backend.js';
import { harnessDir } from '../dist/cli/home.js';
import { harnessStatus } from '../dist/harnesses/install/install.js';
import { harnessRegistry } from '../dist/harnesses/registry.js';
import { runCell } from '../matrix/cell.mjs';
import { checkRow } from '../matrix/plan.mjs';

const CELLS = ['edit', 'parallel_calls'];

const engine = (mode) => ({ engine: { mode } });

const WAYS = [
  { mode: 'vllm tokens', sim: { scaleOut: true }, kind: 'vllm', task: engine('tokens') },
  { mode: 'sglang input_ids', sim: { face: 'sglang' }, kind: 'sglang', task: engine('tokens') },
  { mode: 'vllm chat', sim: {}, kind: 'vllm', task: engine('chat') },
  {
    mode: "vllm chat, Polar's merge",
    sim: {},
    kind: 'vllm',
    task: { ...engine('chat'), builder: { strategy: 'prefix_merging', config: { on_drift: 'merge' } } },
  },
];

/** `only`: harnesses; empty for all that are installed. Returns lines as the table has them, and what went wrong in words. */
export async function realHarnesses({ only, jobs }) {
  const rows = await loadRows(only);
  const { backend } = await chooseBackend();
  const keepDir = await mkdtemp(join(tmpdir(), 'floe-fidelity-kept-'));
  const signal = new AbortController().signal;
  const lines = [];
  const problems = [];
  const work = [];
  for (const { row, variant, dialect } of rows) {
    for (const way of WAYS) {
      const line = { harness: variant.label, mode: way.mode, counted: true, ...nothing() };
      lines.push(line);
      for (const name of CELLS) work.push({ row, variant, dialect, way, name, line });
    }
  }
  const waiting = work.values();
  const worker = async () => {
    for (const { row, variant, dialect, way, name, line } of waiting) {
      const { cell } = await import(`../matrix/cells/${name}.mjs`);
      const planned = { row: { ...row, sim: { ...row.sim, ...way.sim } }, variant, dialect, cell: name, ...way };
      const report = await runCell(planned, cell, { backend, keepDir, signal });
      const what = `${variant.label} ${dialect} ${name}, ${way.mode}`;
      console.log(`${report.problems.length === 0 ? 'ok     ' : 'FAILED '} ${what} (${report.seconds.toFixed(1)} s)`);
      problems.push(...report.problems.slice(0, 3).map((text) => `${what}: ${text}`));
      if (report.ledger !== undefined) count(line, report);
    }
  };
  await Promise.all(Array.from({ length: Math.max(1, jobs) }, worker));
  if (problems.length === 0) await rm(keepDir, { recursive: true });
  else console.log(`material in ${keepDir}`);
  return { lines, problems };
}

async function loadRows(only) {
  const dir = new URL('../matrix/rows/', import.meta.url);
  const registry = harnessRegistry();
  const rows = [];
  for (const file of (await readdir(dir)).filter((name) => name.endsWith('.mjs')).sort()) {
    const { row } = await import(new URL(file, dir).href);
    checkRow(row, file);
    if (only.length > 0 && !only.includes(row.harness)) continue;
    const adapter = registry.get(row.harness);
    const { installed } = await harnessStatus(row.harness, harnessDir());
    if (adapter === undefined || !installed) {
      console.log(`skipped ${row.harness}: it is not installed`);
      continue;
    }
    for (const variant of row.variants) {
      const skipped = Object.keys(row.skips ?? {}).includes(CELLS[0]);
      if (skipped) console.log(`skipped ${variant.label}: ${row.skips[CELLS[0]]}`);
      else rows.push({ row, variant, dialect: (variant.dialects ?? adapter.dialects)[0] });
    }
  }
  return rows;
}

function nothing() {
  const zero = { sessions: 0, completions: 0, traces: 0, sampled: 0, trained: 0, exact: 0 };
  return { ...zero, mismatches: 0, trained_twice: 0, unaccounted: 0 };
}

function count(line, { ledger, facts }) {
  const { result, completions, entries } = facts;
  const recorded = new Set(completions.map(({ completion_id }) => completion_id));
  const sum = (list) => list.reduce((total, entry) => total + entry.response_ids.length, 0);
  const lost = entries.filter(({ request_id }) => !recorded.has(request_id));
  const unexplained = lost.filter(({ faults, aborted_at }) => faults.length === 0 && aborted_at === null);
  const { tokens } = result.audit;
  const excluded = Object.values(tokens.excluded).reduce((total, one) => total + one, 0);
  line.sessions++;
  line.completions += completions.length;
  line.traces += ledger.traces;
  line.sampled += sum(entries);
  line.trained += tokens.trained;
  line.exact += ledger.exact_context_tokens;
  line.mismatches += ledger.mismatches.length;
  line.trained_twice += ledger.mismatches.filter(({ what }) => what === 'trained twice').length;
  line.unaccounted += sum(unexplained) + Math.abs(sum(entries) - sum(lost) - tokens.trained - excluded);
}
