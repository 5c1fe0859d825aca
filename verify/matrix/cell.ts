// Runs one cell of the matrix, that is, one test case with one harness in one dialect: builds its task, runs the unmodified program
// against the simulated engine, and checks the result.
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { abortAfter } from '../../src/core/abort.ts';
import { systemClock } from '../../src/core/clock.ts';
import type {
  CompletionRecord,
  EngineKind,
  RuntimeBackend,
  SessionResult,
  TaskRequestInput,
} from '../../src/schema/index.ts';
import {
  checkAgainstLedger,
  type FaultInput,
  type LedgerEntry,
  type LedgerReport,
  type ScenarioInput,
  type SimConfigInput,
} from '../../src/sim/index.ts';
import {
  accountProblems,
  type Expectation,
  Facts,
  labelProblems,
  mismatchProblems,
  taskProblems,
  workProblems,
} from './checks.ts';
import type { RunnableCell } from './plan.ts';
import type { Row, Settings } from './row.ts';
import { completionsOf, runTask, type Stack, startStack } from './stack.ts';

/**
 * Maximum number of seconds of active time for a session. The slowest harness needs about 10 s for a test case, and the machine may be
 * busy.
 */
const SESSION_SECONDS = 150;
/** Longest time for a whole test case, ms, including the time in which its session waits. */
const CELL_MS = 240_000;

const COMMIT =
  'git init -q . && git add -A && git -c user.name=floe -c user.email=floe@localhost commit -q --allow-empty -m Start';

/** The plan of a cell (test case): the task for the harness, and the replies of the simulated policy. */
export type CellPlan = {
  readonly instruction: string;
  /** Contents of the files in the work folder, by path; a Buffer for a binary file. */
  readonly files?: Readonly<Record<string, string | Buffer>>;
  readonly settings?: Settings | undefined;
  readonly sampling?: TaskRequestInput['sampling'];
  readonly sim?: SimConfigInput;
  readonly scenarios: ScenarioInput[];
  readonly faults?: readonly FaultInput[];
  /** A shell command that prints whether the task is done; see {@link grader}. */
  readonly grader: string;
  readonly expect?: Expectation;
  /** Checks the session further. Returns a sentence for each problem. */
  readonly check?: (facts: Facts) => string[];
};

export type Cell = {
  /** Short description of the test case, for the documentation. */
  readonly title: string;
  build(input: { readonly row: Row }): CellPlan;
};

/**
 * Settings with which a test case runs once more with another engine API or other task fields, to compare the ways in which floe captures
 * calls and builds traces.
 */
export type Way = {
  /** The engine API that floe uses. The default is vLLM's. */
  readonly kind?: EngineKind;
  /** Fields that replace fields of the task. */
  readonly task?: Partial<TaskRequestInput>;
};

export type CellOptions = {
  readonly backend: RuntimeBackend;
  /** Path of the folder to which the task, the result and the ledger of each failed test case are written. */
  readonly keepDir: string;
  /** Whether the task, the result and the ledger of passed test cases are written to `keepDir` as well. */
  readonly keepAlways?: boolean;
  readonly signal: AbortSignal;
};

export type CellReport = {
  readonly problems: readonly string[];
  /** Number of differences between the samples that the trainer received and the engine's ledger. */
  readonly mismatches: number;
  readonly seconds: number;
  /** The folder with the task, the result and the ledger; `null` when these were not written. */
  readonly kept: string | null;
  /** Id of the test case's session; `null` when the session did not end. */
  readonly sessionId: string | null;
  /** The comparison of the result with the ledger; `null` when there was no result. */
  readonly compared: { readonly ledger: LedgerReport; readonly facts: Facts } | null;
};

/** The data collected so far about a running test case. It is written to a folder when the test case fails. */
type Material = {
  task?: TaskRequestInput;
  result?: SessionResult;
  completions?: readonly CompletionRecord[];
  entries?: readonly LedgerEntry[];
};

/** Returns the task of a cell, that is, of one test case with one harness in one dialect. */
export function taskOf({ row, variant, dialect }: RunnableCell, plan: CellPlan, way: Way = {}): TaskRequestInput {
  const files: Readonly<Record<string, string | Buffer>> = { ...row.files?.(), ...plan.files };
  return {
    instruction: plan.instruction,
    timeout_seconds: SESSION_SECONDS,
    max_attempts: 1,
    agent: {
      harness: row.harness,
      dialect,
      settings: { ...variant.settings, ...plan.settings },
      ...row.agent?.(dialect),
    },
    sampling: plan.sampling ?? {},
    ...way.task,
    runtime: {
      prepare: [
        ...Object.entries(files).map(([target, content]) => prepareFile(target, content)),
        { type: 'exec', command: COMMIT },
      ],
    },
    evaluator: {
      strategy: 'test_on_output',
      config: { test_command: plan.grader, expected_output_json: { task: 'PASSED' } },
    },
  };
}

type PrepareInput = NonNullable<NonNullable<TaskRequestInput['runtime']>['prepare']>[number];

function prepareFile(target: string, content: string | Buffer): PrepareInput {
  if (typeof content === 'string') return { type: 'write_file', target, content };
  return { type: 'exec', command: `echo ${content.toString('base64')} | base64 -d > ${target}` };
}

/** Runs one cell (test case). Never rejects: every failure becomes a problem in the report. */
export async function runCell(
  planned: RunnableCell,
  cell: Cell,
  { backend, keepDir, keepAlways = false, signal }: CellOptions,
  way: Way = {},
): Promise<CellReport> {
  const startMs = systemClock.monotonicMs();
  const limit = abortAfter(systemClock, CELL_MS, () => new Error(`no result within ${CELL_MS / 1000} s`), signal);
  const material: Material = {};
  const problems: string[] = [];
  let compared: CellReport['compared'] = null;
  let stack: Stack | null = null;
  try {
    const plan = cell.build(planned);
    const sim = { ...planned.row.sim, scenarios: plan.scenarios, ...plan.sim };
    stack = await startStack({ backend, sim, ...(way.kind === undefined ? {} : { kind: way.kind }) });
    stack.sim.setFaults(plan.faults ?? []);
    material.task = taskOf(planned, plan, way);
    material.result = await runTask(stack, material.task, limit.signal);
    compared = await compare(stack, material.result, material, limit.signal);
    problems.push(...problemsOf(compared, plan));
  } catch (error) {
    const isLate = limit.signal.aborted && !signal.aborted;
    problems.push(isLate ? `no result within ${CELL_MS / 1000} s` : textOf(error));
    if (stack !== null) material.entries ??= stack.sim.ledger.entries();
  } finally {
    limit.release();
  }
  try {
    await stack?.close();
  } catch (error) {
    problems.push(`teardown: ${error instanceof Error ? error.message : error}`);
  }
  const isKept = problems.length > 0 || keepAlways;
  return {
    problems,
    mismatches: compared?.ledger.mismatches.length ?? 0,
    seconds: (systemClock.monotonicMs() - startMs) / 1000,
    kept: isKept ? await keep(keepDir, planned, material, problems) : null,
    sessionId: material.result?.session_id ?? null,
    compared,
  };
}

/** Compares a session with the engine's ledger. Adds the data that it reads to `material`. */
async function compare(
  stack: Stack,
  result: SessionResult,
  material: Material,
  signal: AbortSignal,
): Promise<{ ledger: LedgerReport; facts: Facts }> {
  const completions = await completionsOf(stack, result, signal);
  // Entries without this session's id come from calls that probe the engine's features, and are left out.
  const entries = stack.sim.ledger.entries({ sessionId: result.session_id });
  Object.assign(material, { completions, entries });
  const facts = new Facts({ result, completions, entries, firedFaults: await countFiredFaults(stack) });
  return { ledger: checkAgainstLedger([result], entries, 'processed'), facts };
}

function problemsOf({ ledger, facts }: { ledger: LedgerReport; facts: Facts }, plan: CellPlan): string[] {
  return [
    ...taskProblems(facts, plan.expect),
    ...mismatchProblems(ledger.mismatches),
    ...accountProblems(facts),
    ...labelProblems(facts),
    ...workProblems(facts),
    ...(plan.check?.(facts) ?? []),
  ];
}

const faultsSchema = z.object({ faults: z.array(z.object({ fired: z.number() })) });

async function countFiredFaults({ sim }: Stack): Promise<number> {
  const reply = await fetch(`${sim.url}/__sim/faults`);
  const { faults } = faultsSchema.parse(await reply.json());
  return faults.reduce((sum, { fired }) => sum + fired, 0);
}

function textOf(error: unknown): string {
  return error instanceof Error ? (error.stack ?? error.message) : String(error);
}

/** Returns a file name for a cell, made from harness variant, dialect and test case. */
export function slugOf({ variant, dialect, cell }: RunnableCell): string {
  return `${variant.label}-${dialect}-${cell}`.replaceAll(/[^A-Za-z0-9._-]+/g, '_');
}

async function keep(
  keepDir: string,
  planned: RunnableCell,
  { task, result, completions, entries }: Material,
  problems: readonly string[],
): Promise<string> {
  const dir = join(keepDir, slugOf(planned));
  await mkdir(dir, { recursive: true });
  const pretty = (value: unknown): string | undefined =>
    value === undefined ? undefined : JSON.stringify(value, null, 1);
  const { trajectory, ...summary } = result ?? {};
  const files = {
    'problems.txt': `${problems.join('\n')}\n`,
    'task.json': pretty(task),
    'session.json': pretty(result === undefined ? undefined : summary),
    'trajectory.json': pretty(trajectory),
    'stdout.txt': result?.agent?.stdout_tail,
    'stderr.txt': result?.agent?.stderr_tail,
    'completions.json': pretty(completions),
    'ledger.json': pretty(entries),
  };
  const written = Object.entries(files).filter((file): file is [string, string] => file[1] !== undefined);
  await Promise.all(written.map(([name, content]) => writeFile(join(dir, name), content)));
  return dir;
}
