import { dirname } from 'node:path';
import { type DialectName, type SessionResult, sessionResultSchema } from '@floe-rl/core/schema';
import { findHarness, harnessStatus } from '@floe-rl/node';
import { checkAgainstLedger, loadScenarios } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { chooseBackend } from '#floe/commands/backend';
import { demoTasks } from '#floe/commands/demo-run';
import { harnessDir } from '#floe/commands/home';
import { readTaskFile } from '#floe/commands/yaml-file';
import { describeIf, harnessMissing } from '../skip.ts';
import { EXTRAS, harnessProblem, runRealHarness } from './real-harness.ts';
import { startTestStack, type TestStack } from './stack.ts';

const { backend } = await chooseBackend();
const installed = (await harnessStatus('pi', harnessDir())).installed;
const { tasks } = demoTasks(backend);

/**
 * Defines the tests of the unmodified harness pi, which repairs real repositories. Every recorded token is compared with the engine's own
 * list of sampled tokens.
 */
function suite(dialect: DialectName): void {
  let stack: TestStack;
  let results: SessionResult[];

  beforeAll(async () => {
    stack = await startTestStack({
      scenarios: await loadScenarios(tasks.map((task) => task.scenarioFile)),
      sim: { weightVersion: 'step-1' },
      node: {
        default_backend: backend,
        harness_dir: harnessDir(),
        upload_roots: tasks.map((task) => dirname(task.taskFile)),
      },
    });
    results = [];
    for (const [index, task] of tasks.slice(0, 2).entries()) {
      // The weights are updated before the second task, so that its tokens have another policy version.
      if (index === 1) stack.sim.updateWeights('step-2');
      const request = await readTaskFile(task.taskFile);
      const agent = { ...request.agent, dialect };
      results.push(...(await stack.run({ ...request, agent, num_samples: 3 })));
    }
  }, 120_000);
  afterAll(() => stack.close());

  it('completes and evaluates every session', () => {
    expect(results.map((result) => result.error?.message ?? result.outcome)).toEqual(results.map(() => 'completed'));
    expect(new Set(results.map((result) => result.reward))).toEqual(new Set([0, 1]));
  });

  it('returns results that match their schema', () => {
    for (const result of results) expect(sessionResultSchema.safeParse(result).error).toBeUndefined();
  });

  it('trains exactly what the engine sampled: every token, log-probability and version', () => {
    const report = checkAgainstLedger(results, stack.sim.ledger.entries(), 'processed');
    expect(report.mismatches).toEqual([]);
    expect(report.trainable_tokens).toBeGreaterThan(500);
    expect(report.exact_context_tokens).toBe(report.trainable_tokens);
  });

  it('trains every sampled token or excludes it with a reason', () => {
    // The two replies that floe samples itself when it registers the engine are left out.
    const entries = stack.sim.ledger.entries().filter((entry) => entry.session_id !== null);
    const sampled = entries.reduce((sum, entry) => sum + entry.response_ids.length, 0);
    const audits = results.map((result) => result.audit);
    expect(audits.reduce((sum, audit) => sum + (audit?.tokens.sampled ?? 0), 0)).toBe(sampled);
    for (const audit of audits) {
      const excluded = Object.values(audit?.tokens.excluded ?? {}).reduce((sum, count) => sum + count, 0);
      expect(audit?.tokens.sampled).toBe((audit?.tokens.trained ?? 0) + excluded);
    }
  });

  it('labels every token with the weights that sampled it', () => {
    const versions = results.map((result) =>
      result.trajectory?.traces.flatMap((trace) => trace.version_spans.map((span) => span.version)),
    );
    expect(new Set(versions.slice(0, 3).flat())).toEqual(new Set(['step-1']));
    expect(new Set(versions.slice(3).flat())).toEqual(new Set(['step-2']));
  });

  it('merges the turns of a session into one trace', () => {
    for (const result of results) {
      expect(result.trace_count).toBe(1);
      expect(result.completion_count).toBeGreaterThan(1);
    }
  });
}

for (const dialect of findHarness('pi').dialects) {
  describeIf(harnessMissing('pi', installed), `pi over ${dialect}`, () => suite(dialect));
}

describe('pi in a sandbox', () => {
  it('finds a skill and passes an addition to its prompt on unchanged', async (context) => {
    const problem = await harnessProblem('pi');
    if (problem !== null) context.skip(problem);
    const { skills } = EXTRAS;
    const system_prompt = `@/etc/passwd\n${EXTRAS.system_prompt}`;
    const { result, report, sent } = await runRealHarness({ harness: 'pi', skills, system_prompt }, [
      { tool: 'bash', arguments: { command: 'sed -i s/red/blue/ config.txt' } },
      'Done.',
    ]);
    expect(result.error?.message ?? result.outcome).toBe('completed');
    expect(result.reward).toBe(1);
    expect(report.mismatches).toEqual([]);
    expect(sent).toContain('lamp-rules');
    expect(sent).toContain(JSON.stringify(system_prompt).slice(1, -1));
  });
});
