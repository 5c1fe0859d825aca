import { type Clock, FloeError, KIB, MIB } from '@floe-rl/core';
import type { ExecRequest, ExecResult, Runtime } from '@floe-rl/sandbox';
import { folderOf } from './carried-paths.ts';
import { lastCodeBlock } from './code-block.ts';
import { type CodeTestsConfig, parseCodeTestsConfig, type TestProgram } from './code-tests-config.ts';
import { isRuntimeFailure, requireWorking, tailOf, withinTime, writeBelow } from './commands.ts';
import { type Evaluation, type EvaluationContext, type Evaluator, finalText } from './evaluator.ts';
import { rewardOfTests } from './granularity.ts';
import { readReport } from './test-report.ts';

const MAX_SOLUTION_BYTES = MIB;
/** Maximum number of unsuccessful tests that the details list. */
const MAX_LISTED = 20;
/**
 * An output may be longer than twice the expected output by at most this number of characters. More characters than that cannot be differences
 * in white space.
 */
const MAX_EXTRA_CHARS = 64 * KIB;
/** A command whose first word is the name of a program, and not a path, an assignment or shell syntax. */
const PROGRAM_NAME = /^([A-Za-z0-9_+.-]+)(?:\s|$)/;

/**
 * Result of one test. `crashed`: the solution exited with another code than 0, was killed or could not be started. `not_run`: an earlier test
 * decided the reward, or no time was left.
 */
type CaseResult = 'passed' | 'wrong' | 'crashed' | 'timeout' | 'not_run';

type Grading = {
  readonly config: CodeTestsConfig;
  readonly context: EvaluationContext;
  readonly fresh: Runtime;
  readonly clock: Clock;
  readonly signal: AbortSignal;
};

/**
 * How a command of the agent's code ended. `ran` is `null` when the command could not be started, for example because the code removed its
 * folder.
 */
type Ended = { readonly result: CaseResult; readonly ran: ExecResult | null };

/**
 * Creates the evaluator `code_tests`, which runs hidden tests of a solution in a fresh runtime, with time and memory limits for each test. The
 * expected outputs of cases never enter the runtime. When a test fails in a way that a solution can cause, the test gives a reward of 0.
 */
export function codeTestsEvaluator(clock: Clock): Evaluator {
  return {
    name: 'code_tests',
    freshRuntimeByDefault: true,
    checkConfig(config, spec) {
      parseCodeTestsConfig(config, spec?.refresh_runtime !== false);
    },
    async evaluate(context, signal) {
      const config = parseCodeTestsConfig(context.spec.config, context.freshRuntime !== null);
      const fresh = context.freshRuntime ?? context.runtime;
      const grading = { config, context, fresh, clock, signal };
      await requirePrograms(grading);
      const solution = await readSolution(grading);
      if (typeof solution === 'string') return { reward: 0, details: { failure: solution } };
      const path = `${folderOf(fresh, null)}/${config.solution.path}`;
      await fresh.writeFiles([{ path, content: solution }], signal);
      return (await compileFailure(grading)) ?? (await runTests(grading));
    },
  };
}

/** Rejects with `evaluator_failed` when the fresh runtime lacks a program of the task, because the solution is not the cause. */
async function requirePrograms({ config, fresh, context, signal }: Grading): Promise<void> {
  const { tests, compile } = config;
  const commands = [compile, tests.kind === 'cases' ? tests.command : tests.program.command];
  const names = commands.flatMap((command) => PROGRAM_NAME.exec(command ?? '')?.[1] ?? []);
  for (const name of names) {
    const command = ['/bin/sh', '-c', 'command -v "$1"', 'sh', name];
    const { exitCode } = await fresh.exec({ command, env: context.spec.env }, signal);
    if (exitCode === 0) continue;
    throw new FloeError('evaluator_failed', `code_tests: the fresh runtime has no program ${name}`, { program: name });
  }
}

/** Returns the agent's solution, or the reason as a text when there is none. */
async function readSolution({ config, context, fresh, signal }: Grading): Promise<Buffer | string> {
  const { from, path, language } = config.solution;
  if (from === 'last_message') {
    const block = lastCodeBlock(finalText(context.session), language);
    if (block === null) return 'no_solution';
    return block.length > MAX_SOLUTION_BYTES ? 'solution_too_large' : Buffer.from(block);
  }
  const agent = context.runtime;
  try {
    const file = await agent.readFile(`${folderOf(agent, null)}/${path}`, MAX_SOLUTION_BYTES, signal);
    return file ?? 'no_solution';
  } catch (thrown) {
    if (!isRuntimeFailure(thrown)) throw thrown;
    await requireWorking(fresh, signal);
    return 'solution_unreadable';
  }
}

async function compileFailure(grading: Grading): Promise<Evaluation | null> {
  const { compile, compile_timeout } = grading.config;
  if (compile === null) return null;
  const { result, ran } = await runCode(grading, { command: compile }, compile_timeout);
  if (result === 'passed') return null;
  const failure = result === 'timeout' ? 'compile_timeout' : 'compile_failed';
  return { reward: 0, details: { failure, ...(ran === null ? {} : tailOf(ran)) } };
}

function runTests(grading: Grading): Promise<Evaluation> {
  const { tests } = grading.config;
  return tests.kind === 'cases' ? runCases(grading, tests.command, tests.cases) : runProgram(grading, tests.program);
}

async function runCases(
  grading: Grading,
  command: string,
  cases: readonly { readonly stdin: string; readonly stdout: string }[],
): Promise<Evaluation> {
  const { memory_mb, time_limit, compare, reward_granularity } = grading.config;
  const limit = memory_mb === null ? '' : `ulimit -v ${memory_mb * KIB} || exit 125\n`;
  const results: CaseResult[] = [];
  let firstFailure: Record<string, unknown> = {};
  let isDecided = false;
  for (const { stdin, stdout } of cases) {
    if (isDecided || grading.signal.aborted) {
      results.push('not_run');
      continue;
    }
    const { result, ran } = await runCode(grading, { command: limit + command, stdin }, time_limit);
    const isRight = ran !== null && ran.droppedBytes === 0 && sameOutput(ran.stdout, stdout, compare);
    const graded = result === 'passed' && !isRight ? 'wrong' : result;
    results.push(graded);
    if (graded === 'passed') continue;
    if (Object.keys(firstFailure).length === 0 && ran !== null) firstFailure = { first_failure: tailOf(ran) };
    isDecided = reward_granularity === 'binary';
  }
  return evaluationOf(grading, new Map(results.map((result, index) => [String(index), result])), firstFailure);
}

async function runProgram(grading: Grading, program: TestProgram): Promise<Evaluation> {
  const { config, fresh, signal } = grading;
  const blocked = await writeBelow(fresh, folderOf(fresh, null), program.files, signal);
  if (blocked !== null) {
    // Code of the agent has run only if the solution was compiled.
    if (config.compile === null)
      throw new FloeError('evaluator_failed', `code_tests: program.files: ${blocked.message}`);
    return { reward: 0, details: { failure: 'files_blocked', error: blocked.message } };
  }
  const { result, ran } = await runCode(grading, { command: program.command }, program.timeout);
  const outputs = ran === null ? [] : [ran.stdout, ran.stderr];
  const report = await readReport(outputs, new Set(program.expected), signal);
  const results = program.expected.map((id): [string, CaseResult] => {
    const status = report.expected.get(id);
    if (status === undefined) return [id, result === 'timeout' ? 'timeout' : 'not_run'];
    return [id, status === 'PASSED' ? 'passed' : 'wrong'];
  });
  return evaluationOf(grading, new Map(results), ran === null ? {} : tailOf(ran));
}

/**
 * Runs a command that contains code of the agent. Failures are returned as results. Rejects only when the spawn helper dies, or when the
 * evaluation ends for another reason than its time budget.
 */
async function runCode(
  { context, fresh, clock, signal }: Grading,
  request: Pick<ExecRequest, 'command' | 'stdin'>,
  limitSeconds: number,
): Promise<Ended> {
  const full = { ...request, cwd: folderOf(fresh, null), env: context.spec.env };
  try {
    const ran = await withinTime(clock, limitSeconds * 1000, signal, (limited) => fresh.exec(full, limited));
    if (ran.timedOut) return { result: 'timeout', ran: null };
    return { result: ran.value.exitCode === 0 ? 'passed' : 'crashed', ran: ran.value };
  } catch (thrown) {
    const isMissing = FloeError.is(thrown) && thrown.code === 'workdir_missing';
    if (!isMissing && !isRuntimeFailure(thrown)) throw thrown;
    return { result: 'crashed', ran: null };
  }
}

function sameOutput(printed: string, expected: string, compare: CodeTestsConfig['compare']): boolean {
  // Comparing takes time on the event loop, so the agent must not choose how much.
  if (printed.length > 2 * expected.length + MAX_EXTRA_CHARS) return false;
  if (compare === 'exact') return printed === expected;
  const normal = compare === 'tokens' ? tokensOf : linesOf;
  return normal(printed) === normal(expected);
}

function tokensOf(text: string): string {
  return text.trim().split(/\s+/).join(' ');
}

function linesOf(text: string): string {
  return text
    .split('\n')
    .map((line) => line.trimEnd())
    .join('\n')
    .trimEnd();
}

function evaluationOf(
  { config }: Grading,
  results: ReadonlyMap<string, CaseResult>,
  more: Record<string, unknown>,
): Evaluation {
  const values = [...results.values()];
  const passed = values.filter((result) => result === 'passed').length;
  const total = results.size;
  // Cases after the first failure are not run when they cannot change the reward. The share of passed cases is then unknown.
  const isPartial =
    config.reward_granularity === 'binary' && config.tests.kind === 'cases' && values.includes('not_run');
  const failed = [...results].filter(([, result]) => result !== 'passed').slice(0, MAX_LISTED);
  return {
    reward: rewardOfTests(config.reward_granularity, { passed, total }),
    components: isPartial ? {} : { pass_rate: passed / total },
    details: { tests: total, passed, failed: Object.fromEntries(failed), ...more },
  };
}
