import type { Clock } from '../core/clock.ts';
import { FloeError } from '../core/errors.ts';
import type { ExecResult, Runtime } from '../runtimes/runtime.ts';
import { type Timed, withinTime } from './deadline.ts';
import type { Evaluation, EvaluationContext, Evaluator } from './evaluator.ts';
import { carryPatch, tailOf } from './patch.ts';
import { parseTestConfig, type TestConfig } from './test-config.ts';
import { type FoundStatus, parseReport } from './test-report.ts';

/** Of the nodes that differ, named in details. */
const MAX_LISTED = 50;

/**
 * Runs a test command and compares the nodes that it reports with those expected: 1 when every expected node has the
 * expected status, else 0. With a fresh runtime the agent's work is carried over as a patch; otherwise the tests run
 * where the agent worked.
 *
 * A failure that the agent can bring about (a patch that does not apply, tests that hang or report nothing) is a
 * reward of 0: were it no reward, breaking the tests would be a way to avoid a bad one. `evaluator_failed` is kept for
 * what happens without anything of the agent's having run: no repository in the fresh runtime, or a test command that
 * hangs or reports nothing there although the patch is empty.
 */
export function testOnOutputEvaluator(clock: Clock): Evaluator {
  return {
    name: 'test_on_output',
    checkConfig(config, spec) {
      const parsed = parseTestConfig(config);
      if (spec !== undefined) refuseVainExcludes(parsed, spec.refresh_runtime);
    },
    async evaluate(context, signal) {
      const config = parseTestConfig(context.spec.config);
      refuseVainExcludes(config, context.freshRuntime !== null);
      if (context.freshRuntime === null) return gradeTests(context.runtime, config, context, clock, signal, null);
      const carrier = { config, env: context.spec.env, clock, signal };
      const patch = await carryPatch(context.runtime, context.freshRuntime, carrier);
      if (!patch.applied) return { reward: 0, details: { failure: patch.problem, ...patch.details } };
      return gradeTests(context.freshRuntime, config, context, clock, signal, patch.bytes);
    },
  };
}

/** Without a patch there is nothing to drop them from, and a rule that silently does nothing is worse than none. */
function refuseVainExcludes(config: TestConfig, hasFreshRuntime: boolean): void {
  if (config.exclude_patterns.length === 0 || hasFreshRuntime) return;
  throw new FloeError('schema_violation', 'evaluator.config: exclude_patterns needs evaluator.refresh_runtime');
}

/** `patchBytes` null: the agent's own runtime. */
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
    if (!FloeError.is(thrown) || thrown.code !== 'workdir_missing') throw thrown;
    return blame('repo_missing', patchBytes, facts);
  }
  if (ran.timedOut) return blame('test_timeout', patchBytes, { ...facts, test_timeout: config.test_timeout });
  const { stdout, stderr, droppedBytes } = ran.value;
  const found = parseReport(`${stdout}\n${stderr}`, new Set(config.expected.keys()));
  const details = { ...facts, ...tailOf(ran.value), output_dropped_bytes: droppedBytes };
  if (found.size === 0) return blame('no_nodes', patchBytes, details);
  const comparison = compare(config, found);
  return { reward: comparison.matched ? 1 : 0, details: { ...details, ...comparison.details } };
}

/** An empty patch in a fresh runtime is the one case in which nothing of the agent's can have had a part. */
function blame(failure: string, patchBytes: number | null, details: Record<string, unknown>): Evaluation {
  if (patchBytes === 0) {
    throw new FloeError(
      'evaluator_failed',
      `test_on_output: ${failure} in a fresh runtime with an empty patch`,
      details,
    );
  }
  return { reward: 0, details: { failure, ...details } };
}

/** Nodes that nobody asked for are counted and change nothing: an agent may well add tests of its own. */
function compare(config: TestConfig, found: ReadonlyMap<string, FoundStatus>) {
  const differing = [...config.expected].filter(([node, status]) => found.get(node) !== status);
  const unexpected = [...found.keys()].filter((node) => !config.expected.has(node)).length;
  return {
    matched: differing.length === 0,
    details: {
      expected_nodes: config.expected.size,
      matching_nodes: config.expected.size - differing.length,
      unexpected_nodes: unexpected,
      differing: Object.fromEntries(
        differing.slice(0, MAX_LISTED).map(([node, expected]) => [node, { expected, found: found.get(node) ?? null }]),
      ),
    },
  };
}
