// Runs one cell of the matrix, that is, one test case with one harness in one dialect. It builds the task, runs the unmodified harness with
// the simulated engine, and checks the result.
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { abortAfter, systemClock } from '@floe-rl/core';
import type {
  CompletionRecord,
  EngineKind,
  RuntimeBackend,
  SessionResult,
  TaskRequestInput,
} from '@floe-rl/core/schema';
import {
  checkAgainstLedger,
  type FaultInput,
  type LedgerEntry,
  type LedgerReport,
  type ScenarioInput,
  type SimConfigInput,
} from '@floe-rl/sim';
import { z } from 'zod';
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
 * Maximum time in seconds that a session may spend in its active stages. The slowest harness needs about 10 s for a test case, but the
 * machine may be busy.
 */
const SESSION_SECONDS = 150;
/** Maximum duration of a test case in ms, including the time for which its session is queued. */
const CELL_MS = 240_000;

const COMMIT =
  'git init -q . && git add -A && git -c user.name=floe -c user.email=floe@localhost commit -q --allow-empty -m Start';

/** The plan of one test case: the task for the harness, the scripted replies of the simulated policy, and the checks. */
export type CellPlan = {
  readonly instruction: string;
  /** Contents of the files that are written to the agent's work folder before it starts, by path. A Buffer is used for a binary file. */
  readonly files?: Readonly<Record<string, string | Buffer>>;
  readonly settings?: Settings | undefined;
  readonly sampling?: TaskRequestInput['sampling'];
  readonly sim?: SimConfigInput;
  readonly scenarios: ScenarioInput[];
  readonly faults?: readonly FaultInput[];
  /** A shell command that prints whether the agent has done the task. {@link grader} makes such a command. */
  readonly grader: string;
  readonly expect?: Expectation;
  /** Performs additional checks of the session. Returns one sentence for each problem. */
  readonly check?: (facts: Facts) => string[];
};

export type Cell = {
  /** Short description of the test case, which is printed in the compatibility document. */
  readonly title: string;
  build(input: { readonly row: Row }): CellPlan;
};

/**
 * Settings for an additional run of a test case with another engine API or with other task fields. Tests compare such runs, to check the
 * different ways in which floe captures calls and builds traces.
 */
export type Way = {
  /** Settings of the simulated engine, in addition to the settings of the test case. */
  readonly sim?: SimConfigInput;
  /** The kind of engine (such as `vllm` or `sglang`) as which floe addresses the simulated engine. The default is `vllm`. */
  readonly kind?: EngineKind;
  /** The mode in which floe must capture at least one call. Calls with images, for example, are captured in chat mode in every case. */
  readonly captured?: MatrixMode;
  /** Task fields that replace fields of the test case. */
  readonly task?: Partial<TaskRequestInput>;
};

/**
 * How floe captures the model calls of a run. `tokens`: floe sends prompts as token ids, because the simulated vLLM runs as with
 * `--enable-scale-out`. `chat`: it runs as without this option, so floe sends messages and vLLM renders the prompts.
 */
export type MatrixMode = 'tokens' | 'chat';

export const WAYS: Readonly<Record<MatrixMode, Way>> = {
  tokens: { sim: { scaleOut: true }, captured: 'tokens' },
  chat: { captured: 'chat' },
};

export type CellOptions = {
  readonly backend: RuntimeBackend;
  /** Folder to which the task, the result and the engine's ledger of each failed test case are written. */
  readonly keepDir: string;
  /** Whether task, result and ledger are written to `keepDir` for passed test cases as well. */
  readonly keepAlways?: boolean;
  readonly signal: AbortSignal;
};

export type CellReport = {
  readonly problems: readonly string[];
  /** Number of differences between the samples that the trainer received and the ledger of the simulated engine. */
  readonly mismatches: number;
  readonly seconds: number;
  /** Folder that contains the task, the result and the ledger of the test case; `null` when they were not written. */
  readonly kept: string | null;
  /** Id of the session that the test case ran; `null` when there was no result. */
  readonly sessionId: string | null;
  /** The comparison of the session's result with the engine's ledger; `null` when there was no result. */
  readonly compared: { readonly ledger: LedgerReport; readonly facts: Facts } | null;
};

/** The data that has been collected about a running test case so far. It is written to `keepDir` when the test case fails. */
type Material = {
  task?: TaskRequestInput;
  result?: SessionResult;
  completions?: readonly CompletionRecord[];
  entries?: readonly LedgerEntry[];
};

/** Returns the task that the test case submits for one harness in one dialect. */
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
      refresh_runtime: false,
      config: { test_command: plan.grader, expected_output_json: { task: 'PASSED' } },
    },
  };
}

type PrepareInput = NonNullable<NonNullable<TaskRequestInput['runtime']>['prepare']>[number];

function prepareFile(target: string, content: string | Buffer): PrepareInput {
  if (typeof content === 'string') return { type: 'write_file', target, content };
  return { type: 'exec', command: `echo ${content.toString('base64')} | base64 -d > ${target}` };
}

/** Runs one test case with one harness in one dialect. Never rejects: every failure becomes a problem in the report. */
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
    const sim = { ...planned.row.sim, scenarios: plan.scenarios, ...plan.sim, ...way.sim };
    stack = await startStack({ backend, sim, ...(way.kind === undefined ? {} : { kind: way.kind }) });
    stack.sim.setFaults(plan.faults ?? []);
    material.task = taskOf(planned, plan, way);
    material.result = await runTask(stack, material.task, limit.signal);
    compared = await compare(stack, material.result, material, limit.signal);
    problems.push(...problemsOf(compared, plan), ...modeProblems(material.completions ?? [], way));
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

/** Compares the result of a session with the engine's ledger. Stores the data that it reads in `material`. */
async function compare(
  stack: Stack,
  result: SessionResult,
  material: Material,
  signal: AbortSignal,
): Promise<{ ledger: LedgerReport; facts: Facts }> {
  const completions = await completionsOf(stack, result, signal);
  // Reads only the ledger entries of this session. Other entries come from floe's own calls, which probe the engine's features.
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

function modeProblems(completions: readonly CompletionRecord[], { captured }: Way): string[] {
  if (captured === undefined || completions.some(({ capture }) => capture.mode === captured)) return [];
  return [`no call was captured in ${captured} mode`];
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

/** Returns a file name for a test case run, made from the harness variant, the dialect and the name of the test case. */
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
