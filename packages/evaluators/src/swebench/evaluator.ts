import { type Clock, FloeError } from '@floe-rl/core';
import type { ExecResult, Runtime } from '@floe-rl/sandbox';
import { outputMissing, type Timed, tailOf, withinTime } from '../commands.ts';
import type { Evaluation, Evaluator } from '../evaluator.ts';
import { carryPatch, newPatchPath, type PatchOptions } from '../patch.ts';
import { parseSweBenchConfig, type R2eRow, type SweBenchConfig, type SweBenchRow } from './config.ts';
import { type GradedTests, grade } from './grading.ts';
import { readLog } from './log.ts';
import { logParser } from './parsers/registry.ts';
import { gradeR2e } from './r2e-gym.ts';
import { placeTests, type StoredTestPatch, storeTestPatch } from './test-patch.ts';

const NAME = 'swebench';
/** Maximum number of tests that the details of a reward list. */
const MAX_LISTED = 50;

/**
 * Creates the evaluator `swebench`. It grades rows of SWE-bench, SWE-Gym and R2E-Gym with the verdicts of the package `swebench` and of
 * R2E-Gym. The agent's changes are applied in a fresh runtime. The tests of the row replace the agent's changes to these files, and are run
 * there.
 *
 * A failure that the agent can cause is a reward of 0. Throws `evaluator_failed` when the fresh runtime has no repository, or another
 * repository than the row.
 */
export function sweBenchEvaluator(clock: Clock): Evaluator {
  return {
    name: NAME,
    freshRuntimeByDefault: true,
    checkConfig(config, spec) {
      parseSweBenchConfig(config);
      if (spec?.refresh_runtime === false) throw needsFreshRuntime();
    },
    async evaluate({ spec, runtime, freshRuntime }, signal) {
      const config = parseSweBenchConfig(spec.config);
      if (freshRuntime === null) throw needsFreshRuntime();
      const options = { evaluator: NAME, config: config.patch, env: spec.env, clock, signal };
      return evaluate(config, runtime, freshRuntime, options);
    },
  };
}

function needsFreshRuntime(): FloeError {
  return new FloeError(
    'schema_violation',
    `the evaluator ${NAME} needs a fresh runtime, which evaluator.refresh_runtime: false disables`,
  );
}

async function evaluate(
  config: SweBenchConfig,
  runtime: Runtime,
  fresh: Runtime,
  options: PatchOptions,
): Promise<Evaluation> {
  const gradePatch = await grader(config, fresh, options);
  const patch = await carryPatch(runtime, fresh, options);
  if (!patch.applied) return failed(patch.problem, patch.details);
  if (patch.bytes === 0) return failed('empty_patch', { patch_bytes: 0 });
  return gradePatch({ patch_bytes: patch.bytes });
}

/** Grades the agent's patch after it was applied. `facts` become part of the details. */
type Grader = (facts: Record<string, unknown>) => Promise<Evaluation>;

/** Prepares the fresh runtime before the agent's patch is applied there, and returns a function that grades the patch afterwards. */
async function grader(config: SweBenchConfig, fresh: Runtime, options: PatchOptions): Promise<Grader> {
  const { row } = config;
  if (row.kind === 'r2e_gym') return (facts) => gradeR2eGym(fresh, row, config, facts, options);
  const testPatch = await storeTestPatch(fresh, row, options);
  return (facts) => gradeSweBench(fresh, row, testPatch, config, facts, options);
}

function failed(failure: string, details: Record<string, unknown>): Evaluation {
  return { reward: 0, details: { failure, ...details } };
}

async function gradeSweBench(
  fresh: Runtime,
  row: SweBenchRow,
  testPatch: StoredTestPatch,
  config: SweBenchConfig,
  facts: Record<string, unknown>,
  options: PatchOptions,
): Promise<Evaluation> {
  const problem = await placeTests(fresh, testPatch, !row.scriptApplies, options);
  if (problem !== null) return failed(problem.failure, { ...facts, ...problem.details });
  const path = newPatchPath(fresh);
  await fresh.writeFiles([{ path, content: Buffer.from(row.script) }], options.signal);
  const ran = await runTests(fresh, ['/bin/bash', path], config, options);
  if (ran.timedOut) return failed('test_timeout', { ...facts, test_timeout: config.testTimeoutMs / 1000 });
  // The script prints each of its lines before it runs them, so code of the agent cannot prevent the first lines.
  if (ran.value.stdout === '' && ran.value.exitCode !== null) throw outputMissing(NAME, 'the lines of the test script');
  const details = { ...facts, ...tailOf(ran.value), output_dropped_bytes: ran.value.droppedBytes };
  const log = await readLog(ran.value.stdout, logParser(row.parser), row.facts, options.signal);
  if (!log.valid) return failed(log.reason, details);
  const { resolved, failToPass, passToPass } = grade(log.statuses, row.tests, row.evalType);
  const expected = row.tests.failToPass.length + row.tests.passToPass.length;
  const held = failToPass.held.length + passToPass.held.length;
  return {
    reward: config.granularity === 'binary' ? Number(resolved) : held / expected,
    details: { ...details, resolved, fail_to_pass: summary(failToPass), pass_to_pass: summary(passToPass) },
  };
}

function summary({ held, failed: failing, undecided }: GradedTests): Record<string, unknown> {
  const others = [...failing, ...undecided];
  return { held: held.length, not_held: others.length, examples: others.slice(0, MAX_LISTED) };
}

async function gradeR2eGym(
  fresh: Runtime,
  row: R2eRow,
  config: SweBenchConfig,
  facts: Record<string, unknown>,
  options: PatchOptions,
): Promise<Evaluation> {
  const ran = await runTests(fresh, `{ ${row.testCommand}\n} 2>&1`, config, options);
  if (ran.timedOut) return failed('test_timeout', { ...facts, test_timeout: config.testTimeoutMs / 1000 });
  const { resolved, matching, reported } = await gradeR2e(ran.value.stdout, row.expected, options.signal);
  return {
    reward: config.granularity === 'binary' ? Number(resolved) : matching / row.expected.size,
    details: {
      ...facts,
      ...tailOf(ran.value),
      output_dropped_bytes: ran.value.droppedBytes,
      resolved,
      expected_tests: row.expected.size,
      matching_tests: matching,
      reported_tests: reported,
    },
  };
}

function runTests(
  fresh: Runtime,
  command: string | readonly string[],
  { patch, testTimeoutMs }: SweBenchConfig,
  { env, clock, signal }: PatchOptions,
): Promise<Timed<ExecResult>> {
  const request = { command, cwd: patch.repo_dir ?? fresh.paths.workdir, env };
  return withinTime(clock, testTimeoutMs, signal, (limited) => fresh.exec(request, limited));
}
