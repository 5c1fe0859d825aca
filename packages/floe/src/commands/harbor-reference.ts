import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { abortAfter, asFloeError, FloeError, makeTempDir, systemClock } from '@floe-rl/core';
import { evalRuntimeSpec } from '@floe-rl/core/protocol';
import type {
  EvaluatorSpec,
  PrepareAction,
  RuntimeSpec,
  TaskRequest,
  TaskStep,
  TerminalStatus,
} from '@floe-rl/core/schema';
import { type HarborPart, type HarborTask, resolveVariables, unsupported } from '@floe-rl/data';
import {
  type Evaluation,
  type EvaluatorLookup,
  evaluatorRegistry,
  isBelowMinimum,
  usesFreshRuntime,
} from '@floe-rl/evaluators';
import { openSessionEgress, Sandboxes, type SessionEgress, StartLimits } from '@floe-rl/node';
import { createLogger } from '@floe-rl/observe';
import {
  allowedSource,
  createRuntimeProviders,
  createSpawner,
  nodeImages,
  type PlacedImageSettings,
  type Runtime,
  runPrepare,
} from '@floe-rl/sandbox';
import type { EngineSockets } from './image-builders.ts';

/** The reference solution of a task, or no action at all. */
export type ReferenceAgent = 'oracle' | 'noop';

export type ReferenceResult = {
  readonly task: string;
  readonly agent: ReferenceAgent;
  /** `null` when the verifier could not compute one. */
  readonly reward: number | null;
  /** Why there is no reward, or why it is 0; `null` when the verifier wrote one. */
  readonly problem: string | null;
  readonly seconds: number;
};

export type ReferenceTask = { readonly harbor: HarborTask; readonly task: TaskRequest };

type BenchOptions = {
  readonly sockets: EngineSockets;
  readonly apptainerCommand: string;
  readonly images: PlacedImageSettings;
  readonly uploadRoots: readonly string[];
  readonly allowNetwork: boolean;
  readonly hostVariables: Readonly<Record<string, string>>;
};

const SOLUTION_DIR = '/solution';
/** Shell script that runs the reference solution with the home directory of root, as the verifier runs. */
const SOLVE = `if [ "$(id -u)" = 0 ] && [ -d /root ]; then export HOME=/root; fi; exec bash ${SOLUTION_DIR}/solve.sh`;
/** Maximum number of characters of a verifier's output that a problem quotes, taken from its end. */
const OUTPUT_CHARS = 400;

/** Runs reference solutions in sandboxes and grades them, without a server and without an engine, since they call no model. */
export class ReferenceBench {
  private readonly sandboxes: Sandboxes;
  private readonly options: BenchOptions;
  private readonly stateDir: string;
  private readonly closeAll: () => Promise<void>;
  private count = 0;

  private constructor(sandboxes: Sandboxes, options: BenchOptions, stateDir: string, closeAll: () => Promise<void>) {
    this.sandboxes = sandboxes;
    this.stateDir = stateDir;
    this.options = options;
    this.closeAll = closeAll;
  }

  static async open(options: BenchOptions): Promise<ReferenceBench> {
    const stateDir = makeTempDir('floe-harbor-');
    const spawner = await createSpawner();
    const { sockets, apptainerCommand, uploadRoots, allowNetwork: allowHostNetwork } = options;
    const images = nodeImages(options.images, systemClock);
    const shared = { spawner, clock: systemClock, stateDir, ...sockets, apptainerCommand, images, allowHostNetwork };
    const sandboxes = new Sandboxes({
      providers: createRuntimeProviders(shared),
      defaultBackend: 'docker',
      allowLocal: false,
      uploadRoots,
      startLimits: new StartLimits({}),
    });
    return new ReferenceBench(sandboxes, options, stateDir, async () => {
      await spawner.close();
      await rm(stateDir, { recursive: true, force: true });
    });
  }

  /** Runs a task with a reference agent. A failure that the task causes is a result; rejects for a failure of this machine. */
  async run({ harbor, task }: ReferenceTask, agent: ReferenceAgent, signal: AbortSignal): Promise<ReferenceResult> {
    const startedMs = systemClock.monotonicMs();
    const graded = await this.graded(harbor, task, agent, signal).catch((thrown: unknown) => {
      signal.throwIfAborted();
      const error = asFloeError(thrown);
      if (error.code !== 'evaluator_failed' && error.code !== 'prepare_failed') throw error;
      return { reward: null, problem: error.message };
    });
    const seconds = Math.round((systemClock.monotonicMs() - startedMs) / 100) / 10;
    return { task: harbor.name, agent, ...graded, seconds };
  }

  close(): Promise<void> {
    return this.closeAll();
  }

  private async graded(
    harbor: HarborTask,
    task: TaskRequest,
    agent: ReferenceAgent,
    signal: AbortSignal,
  ): Promise<Pick<ReferenceResult, 'reward' | 'problem'>> {
    const { evaluator: spec, runtime: runtimeSpec, instruction, metadata } = task;
    if (spec === null || runtimeSpec === null) throw new FloeError('internal', 'a Harbor task has both');
    const hostSource = (path: string): Promise<string> => allowedSource(path, this.options.uploadRoots);
    const evaluators = evaluatorRegistry(systemClock, { hostSource });
    const open: Runtime[] = [];
    const egress = await this.openEgress(runtimeSpec);
    const start = async (sandbox: RuntimeSpec, prepare: readonly PrepareAction[]): Promise<Runtime> => {
      const egressSocket = egress?.socketPath ?? null;
      const request = { name: `h${this.count++}`, spec: sandbox, proxy: null, egressSocket, readOnlyMounts: [] };
      const permit = await this.sandboxes.awaitPermit(sandbox, signal);
      const runtime = await this.sandboxes.start(request, prepare, permit, signal);
      open.push(runtime);
      return runtime;
    };
    const startFresh = (): Promise<Runtime> =>
      start(evalRuntimeSpec(runtimeSpec), runtimeSpec.eval_prepare ?? runtimeSpec.prepare);
    try {
      const runtime = await start(runtimeSpec, runtimeSpec.prepare);
      const parts = partsOf(harbor, task);
      const steps: { name: string; evaluation: Evaluation | null }[] = parts.map(({ name }) => ({
        name,
        evaluation: null,
      }));
      for (const [index, part] of parts.entries()) {
        const evaluation = await this.gradedPart(
          part,
          { runtime, startFresh, harbor, task, agent, evaluators },
          signal,
        );
        steps[index] = { name: part.name, evaluation };
        const { step } = part;
        if (step === null) return { reward: evaluation.reward, problem: problemOf(evaluation.details) };
        if (isBelowMinimum(step, evaluation)) break;
      }
      const session = { sessionId: agent, attempt: 1, instruction, metadata, messages: [], traces: [] };
      const context = { spec, status: 'COMPLETED' as const, runtime, freshRuntime: null, session, steps };
      const { reward, details } = await evaluators.get(spec.strategy).evaluate(context, signal);
      return { reward, problem: firstProblem(details) };
    } finally {
      for (const runtime of open) await runtime.stop();
      await egress?.close();
    }
  }

  /** Opens the proxy through which the sandboxes of a task reach its hosts; `null` for a task without such a network. */
  private async openEgress(spec: RuntimeSpec): Promise<SessionEgress | null> {
    const dir = join(this.stateDir, `egress${this.count}`);
    await mkdir(dir, { recursive: true });
    const log = createLogger('floe-harbor', process.env.FLOE_LOG_LEVEL ?? 'error');
    return openSessionEgress(spec, null, { socketPath: join(dir, 'proxy.sock'), log, names: {} });
  }

  /** Runs one part of a task and evaluates it. */
  private async gradedPart(
    { harbor: own, spec, prepare, step }: Part,
    { runtime, startFresh, harbor, task, agent, evaluators }: PartSetup,
    signal: AbortSignal,
  ): Promise<Evaluation> {
    const { instruction, metadata } = task;
    const solution = agent === 'oracle' ? [solutionAction(harbor, own)] : [];
    await runPrepare(runtime, [...prepare, ...solution], { uploadRoots: this.options.uploadRoots }, signal);
    const seconds = step?.agent_seconds ?? task.budgets.agent;
    const status = agent === 'oracle' ? await this.solve(harbor, own, runtime, seconds, signal) : 'COMPLETED';
    const evaluator = evaluators.get(spec.strategy);
    const freshRuntime = usesFreshRuntime(spec, evaluator) ? await startFresh() : null;
    const session = { sessionId: agent, attempt: 1, instruction, metadata, messages: [], traces: [] };
    return limited(step?.eval_seconds ?? task.budgets.eval, signal, (budget) =>
      evaluator.evaluate({ spec, status, runtime, freshRuntime, session }, budget),
    );
  }

  private async solve(
    { file }: HarborTask,
    { solution }: HarborPart,
    runtime: Runtime,
    seconds: number | undefined,
    signal: AbortSignal,
  ): Promise<TerminalStatus> {
    const env = resolveVariables(solution?.env ?? {}, this.options.hostVariables, { file, key: 'solution.env' });
    const ran = await limited(seconds, signal, (budget) =>
      runtime.exec({ command: SOLVE, env: { DEBIAN_FRONTEND: 'noninteractive', ...env } }, budget),
    ).catch((thrown: unknown) => {
      signal.throwIfAborted();
      const error = asFloeError(thrown);
      if (error.code !== 'deadline_exceeded') throw error;
      return null;
    });
    if (ran === null) return 'TIMEOUT';
    return ran.exitCode === 0 ? 'COMPLETED' : 'ERROR';
  }
}

/** A task, or one step of it. */
type Part = {
  readonly name: string;
  readonly harbor: HarborPart;
  readonly spec: EvaluatorSpec;
  /** Prepare actions of the step. Empty for a task without steps, because its prepare actions run at the start of its sandbox. */
  readonly prepare: readonly PrepareAction[];
  /** The step; `null` for a task without steps. */
  readonly step: TaskStep | null;
};

type PartSetup = ReferenceTask & {
  readonly runtime: Runtime;
  readonly startFresh: () => Promise<Runtime>;
  readonly agent: ReferenceAgent;
  readonly evaluators: EvaluatorLookup;
};

function partsOf(harbor: HarborTask, { steps, evaluator }: TaskRequest): Part[] {
  if (evaluator === null) return [];
  if (steps.length === 0) return [{ name: harbor.name, harbor, spec: evaluator, prepare: [], step: null }];
  return steps.map((step, index) => {
    const { name, evaluator: spec, prepare } = step;
    return { name, harbor: harbor.steps[index] ?? harbor, spec, prepare, step };
  });
}

/** Returns the problem of the first step that has one; `null` when none has. */
function firstProblem(details: Readonly<Record<string, unknown>>): string | null {
  for (const [name, own] of Object.entries(details)) {
    const problem = problemOf(own as Readonly<Record<string, unknown>>);
    if (problem !== null) return `${name}: ${problem}`;
  }
  return null;
}

function solutionAction({ dir, file }: HarborTask, { solution }: HarborPart): PrepareAction {
  if (solution === null) throw unsupported(file, 'solution', `${dir} has no reference solution`);
  if (solution.dir !== null) return { type: 'upload_dir', source: solution.dir, target: SOLUTION_DIR };
  return { type: 'write_file', target: `${SOLUTION_DIR}/solve.sh`, content: solution.text, mode: 0o755 };
}

async function limited<T>(
  seconds: number | undefined,
  signal: AbortSignal,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  if (seconds === undefined) return work(signal);
  const late = () => new FloeError('deadline_exceeded', `it took longer than ${seconds} s`);
  const budget = abortAfter(systemClock, seconds * 1000, late, signal);
  try {
    return await work(budget.signal);
  } finally {
    budget.release();
  }
}

/** Returns why a verifier gave no reward, with the end of its output; `null` when it gave one. */
function problemOf(details: Readonly<Record<string, unknown>>): string | null {
  if (typeof details.failure !== 'string') return null;
  const output = `${details.stdout_tail ?? ''}${details.stderr_tail ?? ''}`.trim().slice(-OUTPUT_CHARS);
  return output === '' ? details.failure : `${details.failure}: ${output}`;
}
