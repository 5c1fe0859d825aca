import { type Clock, FloeError } from '@floe-rl/core';
import type { ExecResult, Runtime } from '@floe-rl/sandbox';
import { isRuntimeFailure, type Timed, tailOf, withinTime } from './commands.ts';
import type { Evaluation, EvaluationContext, Evaluator } from './evaluator.ts';
import { rewardOfTests } from './granularity.ts';
import { carryPatch } from './patch.ts';
import { parseTestConfig, type TestConfig } from './test-config.ts';
import { readReport, type TestReport } from './test-report.ts';

/** Maximum number of test ids with an unexpected status that the details of a reward list. */
const MAX_LISTED = 50;

/**
 * Creates the evaluator `test_on_output`. It runs a test command, which reports a status for each test id. The reward is 1 when every expected
 * test id has its expected status, and otherwise 0. With `reward_granularity: pass_rate`, it is the share of expected test ids with their
 * expected status.
 *
 * With a fresh runtime, the agent's changes are applied there as a patch, and the tests run there. Otherwise, the tests run in the agent's own
 * runtime.
 *
 * A failure that the agent can cause (a patch that does not apply, tests that hang or report nothing) is a reward of 0. If such a failure gave
 * no reward, an agent could avoid a bad reward by breaking the tests. `evaluator_failed` is thrown only for failures that the agent cannot
 * have caused. These are a fresh runtime without a repository, and a test command that hangs or reports nothing in a fresh runtime after an
 * empty patch.
 */
export function testOnOutputEvaluator(clock: Clock): Evaluator {
  return {
    name: 'test_on_output',
    freshRuntimeByDefault: true,
    checkConfig(config, spec) {
      const parsed = parseTestConfig(config);
      if (spec !== undefined) checkExcludes(parsed, spec.refresh_runtime !== false);
    },
    async evaluate(context, signal) {
      const config = parseTestConfig(context.spec.config);
      checkExcludes(config, context.freshRuntime !== null);
      if (context.freshRuntime === null) return gradeTests(context.runtime, config, context, clock, signal, null);
      const options = { evaluator: 'test_on_output', config, env: context.spec.env, clock, signal };
      const patch = await carryPatch(context.runtime, context.freshRuntime, options);
      if (!patch.applied) return { reward: 0, details: { failure: patch.problem, ...patch.details } };
      return gradeTests(context.freshRuntime, config, context, clock, signal, patch.bytes);
    },
  };
}

/** Throws when exclude patterns are set although no patch is made. The patterns would otherwise be ignored silently. */
function checkExcludes(config: TestConfig, hasFreshRuntime: boolean): void {
  if (config.exclude_patterns.length === 0 || hasFreshRuntime) return;
  throw new FloeError(
    'schema_violation',
    'evaluator.config: exclude_patterns needs a fresh runtime, which evaluator.refresh_runtime: false disables',
  );
}

/**
 * Runs the test command and grades its report. `patchBytes` is the size of the applied patch; `null` when the tests run in the agent's own
 * runtime.
 */
async function gradeTests(
  runtime: Runtime,
  config: TestConfig,
  { spec }: EvaluationContext,
  clock: Clock,
  signal: AbortSignal,
  patchBytes: number | null,
): Promise<Evaluation> {
  const request = { command: config.test_command, cwd: config.repo_dir ?? runtime.paths.workdir, env: spec.env };
  const facts = { patch_bytes: patchBytes };
  let ran: Timed<ExecResult>;
  try {
    ran = await withinTime(clock, config.test_timeout * 1000, signal, (limited) => runtime.exec(request, limited));
  } catch (thrown) {
    if (FloeError.is(thrown) && thrown.code === 'workdir_missing')
      return failedTests('repo_missing', patchBytes, facts);
    // The agent may have broken its own runtime. In a fresh runtime, only floe's host can have failed.
    if (patchBytes !== null || !isRuntimeFailure(thrown)) throw thrown;
    return failedTests('runtime_broken', patchBytes, { ...facts, error: thrown.message });
  }
  if (ran.timedOut) return failedTests('test_timeout', patchBytes, { ...facts, test_timeout: config.test_timeout });
  const { stdout, stderr, droppedBytes } = ran.value;
  const report = await readReport([stdout, stderr], new Set(config.expected.keys()), signal);
  const details = { ...facts, ...tailOf(ran.value), output_dropped_bytes: droppedBytes };
  if (report.expected.size + report.unexpectedCount === 0) return failedTests('no_nodes', patchBytes, details);
  const comparison = compare(config, report);
  const { matching_nodes: passed, expected_nodes: total } = comparison;
  return {
    reward: rewardOfTests(config.reward_granularity, { passed, total }),
    components: { pass_rate: passed / total },
    details: { ...details, ...comparison },
  };
}

/**
 * Returns a reward of 0 for a failed test run. After an empty patch in a fresh runtime it throws instead, because the agent cannot have
 * caused that failure.
 */
function failedTests(failure: string, patchBytes: number | null, details: Record<string, unknown>): Evaluation {
  if (patchBytes === 0) {
    throw new FloeError(
      'evaluator_failed',
      `test_on_output: ${failure} in a fresh runtime with an empty patch`,
      details,
    );
  }
  return { reward: 0, details: { failure, ...details } };
}

/**
 * Compares the reported statuses with the expected ones. Unexpected test ids are counted but do not change the reward, because an agent
 * may add tests.
 */
function compare(config: TestConfig, { expected: reported, unexpectedCount }: TestReport) {
  const differing = [...config.expected].filter(([testId, status]) => reported.get(testId) !== status);
  return {
    expected_nodes: config.expected.size,
    matching_nodes: config.expected.size - differing.length,
    unexpected_nodes: unexpectedCount,
    differing: Object.fromEntries(
      differing
        .slice(0, MAX_LISTED)
        .map(([testId, expected]) => [testId, { expected, found: reported.get(testId) ?? null }]),
    ),
  };
}
