// Runs the real harness programs through two test cases of verify/matrix, each program in the first dialect that it speaks. Each case runs
// once for each way to capture completions and build traces.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { harnessRegistry, harnessStatus } from '@floe-rl/node';
import type { LedgerReport } from '@floe-rl/sim';
import { chooseBackend } from '#floe/commands/backend';
import { harnessDir } from '#floe/commands/home';
import { runCell, type Way } from '../matrix/cell.ts';
import { CELLS } from '../matrix/cells.ts';
import type { Facts } from '../matrix/checks.ts';
import { type CellName, checkRow, type RunnableCell } from '../matrix/plan.ts';
import { ROWS } from '../matrix/rows.ts';
import { emptyLine, type Line } from './line.ts';

const CELL_NAMES: readonly CellName[] = ['edit', 'parallel_calls'];

/** Maximum number of problems of one test case that are printed. */
const MAX_PRINTED_PROBLEMS = 3;

type NamedWay = Required<Pick<Way, 'kind' | 'sim' | 'task'>> & { readonly mode: string };

const WAYS: readonly NamedWay[] = [
  { mode: 'vllm tokens', sim: { scaleOut: true }, kind: 'vllm', task: { engine: { mode: 'tokens' } } },
  { mode: 'sglang input_ids', sim: { face: 'sglang' }, kind: 'sglang', task: { engine: { mode: 'tokens' } } },
  { mode: 'vllm chat', sim: {}, kind: 'vllm', task: { engine: { mode: 'chat' } } },
  {
    mode: "vllm chat, Polar's merge",
    sim: {},
    kind: 'vllm',
    task: {
      engine: { mode: 'chat' },
      builder: { strategy: 'prefix_merging', config: { on_drift: 'merge' } },
    },
  },
];

type Work = { readonly planned: RunnableCell; readonly way: NamedWay; readonly line: Line };

export type HarnessRun = {
  /** Rows of the result table: one for each harness and each way to capture completions and build traces. */
  readonly lines: readonly Line[];
  readonly problems: readonly string[];
};

/** Runs the harnesses named in `only`, or all installed harnesses when `only` is empty, with `jobs` test cases concurrently. */
export async function runHarnesses({ only, jobs }: { only: readonly string[]; jobs: number }): Promise<HarnessRun> {
  const cells = await plannedCells(only);
  const { backend } = await chooseBackend();
  const keepDir = await mkdtemp(join(tmpdir(), 'floe-fidelity-kept-'));
  const { signal } = new AbortController();
  const lines: Line[] = [];
  const problems: string[] = [];
  const work = cells.flatMap((planned) =>
    WAYS.flatMap((way): Work[] => {
      const line = emptyLine(planned.variant.label, way.mode);
      lines.push(line);
      return CELL_NAMES.map((cell) => ({ planned: { ...planned, cell }, way, line }));
    }),
  );
  const waiting = work.values();
  const runNext = async (): Promise<void> => {
    for (const { planned, way, line } of waiting) {
      const { variant, dialect, cell } = planned;
      const report = await runCell(planned, CELLS[cell], { backend, keepDir, signal }, way);
      const what = `${variant.label} ${dialect} ${cell}, ${way.mode}`;
      console.log(`${report.problems.length === 0 ? 'ok     ' : 'FAILED '} ${what} (${report.seconds.toFixed(1)} s)`);
      problems.push(...report.problems.slice(0, MAX_PRINTED_PROBLEMS).map((problem) => `${what}: ${problem}`));
      if (report.compared !== null) addSession(line, report.compared);
    }
  };
  await Promise.all(Array.from({ length: Math.max(1, jobs) }, runNext));
  if (problems.length === 0) await rm(keepDir, { recursive: true });
  else console.log(`material in ${keepDir}`);
  return { lines, problems };
}

/** Returns the test cases to run: one for each variant of an installed harness, in the first dialect that the harness speaks. */
async function plannedCells(only: readonly string[]): Promise<Omit<RunnableCell, 'cell'>[]> {
  const registry = harnessRegistry();
  const cells: Omit<RunnableCell, 'cell'>[] = [];
  for (const row of ROWS.filter(({ harness }) => only.length === 0 || only.includes(harness))) {
    checkRow(row);
    const adapter = registry.get(row.harness);
    const { installed } = await harnessStatus(row.harness, harnessDir());
    if (adapter === undefined || !installed) {
      console.log(`skipped ${row.harness}: it is not installed`);
      continue;
    }
    for (const variant of row.variants) {
      const reason = row.skips?.edit;
      const [dialect] = variant.dialects ?? adapter.dialects;
      if (reason !== undefined) console.log(`skipped ${variant.label}: ${reason}`);
      else if (dialect !== undefined) cells.push({ row, variant, dialect });
    }
  }
  return cells;
}

function addSession(line: Line, { ledger, facts }: { ledger: LedgerReport; facts: Facts }): void {
  const { result, completions, entries } = facts;
  const recorded = new Set(completions.map(({ completion_id }) => completion_id));
  const lost = entries.filter(({ request_id }) => !recorded.has(request_id));
  const unexplained = lost.filter(({ faults, aborted_at }) => faults.length === 0 && aborted_at === null);
  const sampled = tokensOf(entries);
  const { trained, excluded } = result.audit?.tokens ?? { trained: 0, excluded: {} };
  const excludedTokens = Object.values(excluded).reduce((sum, count) => sum + count, 0);
  line.sessions++;
  line.completions += completions.length;
  line.traces += ledger.traces;
  line.sampled += sampled;
  line.trained += trained;
  line.exact += ledger.exact_context_tokens;
  line.mismatches += ledger.mismatches.length;
  line.unknown_version += ledger.unknown_version_tokens;
  line.stale_context += ledger.stale_context_tokens;
  line.trained_twice += ledger.mismatches.filter(({ what }) => what === 'trained twice').length;
  line.unaccounted += tokensOf(unexplained) + Math.abs(sampled - tokensOf(lost) - trained - excludedTokens);
}

function tokensOf(entries: Facts['entries']): number {
  return entries.reduce((sum, { response_ids }) => sum + response_ids.length, 0);
}
