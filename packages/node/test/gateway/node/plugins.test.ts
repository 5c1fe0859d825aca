import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { systemClock } from '@floe-rl/core';
import { taskRequestSchema } from '@floe-rl/core/schema';
import { evaluatorRegistry } from '@floe-rl/evaluators';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { buildTrajectory } from '../../../../capture/src/tokens/trajectory.ts';
import { Transcript } from '../../../../capture/test/tokens/transcript.ts';
import { createTaskCheck, loadBuilders, loadEvaluators, loadPostRunHooks } from '../../../src/gateway/node/plugins.ts';
import { runSession } from '../../../src/gateway/session/session-runner.ts';
import { harnessRegistry } from '../../../src/harnesses/registry.ts';
import { bench } from '../session-bench.ts';

const EXAMPLE = 'examples/builders/last-turns.ts';

let dir: string;
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'floe-builders-'));
});
afterAll(() => rm(dir, { recursive: true }));

async function moduleOf(name: string, text: string): Promise<string> {
  const path = join(dir, `${name}.mjs`);
  await writeFile(path, text);
  return path;
}

/**
 * Writes an ES module that exports a trace builder, and returns the path of the module. `body` is the code of the `build` function of the
 * builder.
 */
function building(name: string, body: string): Promise<string> {
  return moduleOf(
    name,
    `export const createBuilder = (kit) => ({ checkConfig() {}, build(graph, config) { ${body} } });`,
  );
}

function session(): Transcript {
  const t = new Transcript();
  let history = t.start();
  for (let turn = 0; turn < 3; turn++) history = t.after(history, t.call(history));
  return t;
}

async function buildWith(path: string, config: Record<string, unknown> = {}, strategy = 'mine') {
  const builders = await loadBuilders({ mine: path });
  const spec = { strategy, config };
  const completions = session().completions;
  return buildTrajectory({ spec, builders, completions, status: 'COMPLETED', reward: 1, error: null, metadata: {} });
}

describe('a custom builder', () => {
  it('builds traces that are audited like those of any builder', async () => {
    const { json, audit } = await buildWith(EXAMPLE, { turns: 2 });
    const { builder, traces } = JSON.parse(json.toString());
    expect(builder).toBe('mine');
    expect(traces.map((trace: { completion_ids: string[] }) => trace.completion_ids)).toEqual([['c1', 'c2']]);
    expect(audit).toMatchObject({
      tokens: { sampled: 15, trained: 10, excluded: { early_turn: 5 } },
      exact_context_share: 1,
    });
  });

  it('can be named by its listed path and by no other path', async () => {
    const { audit } = await buildWith(EXAMPLE, {}, EXAMPLE);
    expect(audit.tokens.trained).toBe(5);
    await expect(buildWith(EXAMPLE, {}, resolve(EXAMPLE))).rejects.toMatchObject({ code: 'unknown_builder' });
    const builders = await loadBuilders({ mine: EXAMPLE });
    expect(builders.names()).toEqual(['prefix_merging', 'per_request', 'step', 'mine']);
  });

  it('rejects a configuration with the name of the field', async () => {
    const builders = await loadBuilders({ mine: EXAMPLE });
    for (const [config, message] of [
      [{ turns: 0 }, 'builder.config.turns: must be a whole number from 1'],
      [{ turn: 1 }, 'builder.config.turn: not known'],
    ] as const) {
      expect(() => builders.check({ strategy: 'mine', config })).toThrow(
        expect.objectContaining({ code: 'schema_violation', message }),
      );
    }
  });

  it.each<[string, string, string, RegExp]>([
    ['throws', 'throw new TypeError("oh")', 'builder_failed', /builder mine: oh/],
    ['returns nothing', '', 'builder_failed', /the result of builder mine/],
    ['returns other columns', 'return { traces: [{ ids: [1, 2] }] }', 'builder_failed', /ids/],
    [
      'returns a node that is not in the graph',
      'const t = kit.assembleTrace(graph, [graph.nodes[0]], () => true); return { traces: [{ ...t, nodes: [{}] }] }',
      'builder_failed',
      /not a node of the graph/,
    ],
    ['forgets a completion', 'return { traces: [] }', 'audit_failed', /nothing is excluded/],
    [
      'trains what was not sampled',
      'const t = kit.assembleTrace(graph, [graph.nodes[0]], () => true); t.ids[t.promptLength] = 1; return { traces: [t] }',
      'audit_failed',
      /other ids/,
    ],
  ])('is refused when it %s', async (name, body, code, message) => {
    const failed = buildWith(await building(name.replaceAll(' ', '-'), body));
    await expect(failed).rejects.toMatchObject({ code, message: expect.stringMatching(message) });
  });
});

describe('a module of custom builders', () => {
  it.each<[string, string, RegExp]>([
    ['does not export createBuilder', 'export const builder = {};', /export a function createBuilder/],
    ['has a builder without build', 'export const createBuilder = () => ({ checkConfig() {} });', /build/],
    [
      'has a builder without checkConfig',
      'export const createBuilder = () => ({ checkConfig: 1, build() {} });',
      /checkConfig/,
    ],
    ['fails to make its builder', 'export const createBuilder = () => { throw new Error("no"); };', /no/],
    ['is not JavaScript', 'export const = 1', /cannot be loaded/],
  ])('fails the start of the node when it %s', async (name, text, message) => {
    const path = await moduleOf(name.replaceAll(' ', '-'), text);
    await expect(loadBuilders({ mine: path })).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringMatching(message),
    });
  });

  it('fails the start of the node when it does not exist or has the name of a built-in builder', async () => {
    await expect(loadBuilders({ mine: join(dir, 'absent.mjs') })).rejects.toMatchObject({ code: 'setup_failed' });
    await expect(loadBuilders({ step: EXAMPLE })).rejects.toMatchObject({ code: 'setup_failed' });
  });
});

describe('a submitted task', () => {
  const check = createTaskCheck(harnessRegistry(), evaluatorRegistry());
  const by =
    (runtime: object, evaluator: object | null = null) =>
    () =>
      check(taskRequestSchema.parse({ instruction: 'x', agent: { harness: 'pi' }, runtime, evaluator }));

  it('is refused when its back end lacks its user', () => {
    expect(by({ backend: 'bubblewrap', user: 'dev' })).toThrow(
      expect.objectContaining({ code: 'unsupported', details: expect.objectContaining({ path: 'runtime.user' }) }),
    );
    for (const runtime of [{ backend: 'docker', user: 'dev' }, { user: 'dev' }, { backend: 'bubblewrap' }]) {
      expect(by(runtime)).not.toThrow();
    }
  });

  const command = { restore: 'none', reset_command: 'clean' };
  const served = { ...command, services: ['serve'] };
  it.each([
    ['docker', {}, 'restore'],
    ['podman', { restore: 'all' }, 'restore'],
    ['apptainer', served, 'services'],
    ['local', {}, 'restore'],
    ['local', { restore: 'workdir' }, 'restore'],
    ['local', served, 'services'],
    ['none', command, null],
  ])('is refused when the back end %s cannot reset its sandbox as %j demands', (backend, reuse, field) => {
    const path = field === null ? 'runtime.reuse' : `runtime.reuse.${field}`;
    expect(by({ backend, reuse })).toThrow(
      expect.objectContaining({ code: 'unsupported', details: expect.objectContaining({ path, backend }) }),
    );
  });

  it.each([
    ['bubblewrap', { services: ['serve'] }],
    ['bubblewrap', { ...served, restore: 'workdir' }],
    ['bubblewrap', served],
    ['docker', { ...served, restore: 'workdir' }],
    ['apptainer', command],
    ['local', command],
  ])('is accepted when the back end %s can reset its sandbox as %j demands', (backend, reuse) => {
    expect(by({ backend, reuse })).not.toThrow();
  });

  it('is refused when it has settings of a fresh runtime and no evaluator that uses one', () => {
    const overrides = { eval_overrides: { memory_mb: 512 } };
    const tests = (refresh: boolean) => ({
      strategy: 'test_on_output',
      refresh_runtime: refresh,
      config: { test_command: 'true', expected_output_json: { t: 'PASSED' } },
    });
    for (const evaluator of [null, tests(false)]) {
      expect(by(overrides, evaluator)).toThrow(
        expect.objectContaining({
          code: 'schema_violation',
          details: { issues: [expect.objectContaining({ path: 'runtime.eval_overrides.memory_mb' })] },
        }),
      );
      expect(by({ eval_overrides: {} }, evaluator)).not.toThrow();
    }
    expect(by(overrides, tests(true))).not.toThrow();
  });
});

describe('a task with a custom builder', () => {
  const task = (strategy: string, config = {}) =>
    taskRequestSchema.parse({
      instruction: 'x',
      agent: { harness: 'shell', custom_shell: 'true' },
      builder: { strategy, config },
    });

  it('is accepted when the server knows that nodes have the builder, whatever its configuration', () => {
    const check = createTaskCheck(harnessRegistry(), evaluatorRegistry(), { customBuilders: ['mine'] });
    expect(() => check(task('mine', { any: 1 }))).not.toThrow();
    expect(() => check(task('mien'))).toThrow(expect.objectContaining({ code: 'unknown_builder' }));
    expect(() => check(task('step', { any: 1 }))).toThrow(expect.objectContaining({ code: 'schema_violation' }));
  });

  it.each([
    ['mine', { turns: 'two' }, 'schema_violation'],
    ['other', {}, 'unknown_builder'],
  ])('fails before its sandbox is started when the node rejects builder %s', async (strategy, config, code) => {
    const { attempt, deps, alive } = bench({
      task: { builder: { strategy, config } },
      start: () => Promise.reject(new Error('started')),
    });
    const result = await runSession(attempt, { ...deps, builders: await loadBuilders({ mine: EXAMPLE }) });
    expect(result?.summary).toMatchObject({ outcome: 'env_error', error: { code, stage: 'init' } });
    expect(alive.size).toBe(0);
  });
});

describe('the post-run hooks of a node', () => {
  const listed = (name: string, path: string) => [{ name, module: path, timeout_seconds: 30 }];

  it('are loaded in the order in which they are listed', async () => {
    const text = 'export const postRun = () => ({});';
    const [first, second] = [await moduleOf('first-hook', text), await moduleOf('second-hook', text)];
    const hooks = await loadPostRunHooks([...listed('b', first), ...listed('a', second)], systemClock);
    expect(hooks.map(({ name }) => name)).toEqual(['b', 'a']);
  });

  it.each<[string, string, RegExp]>([
    ['does not export postRun', 'export const run = () => {};', /post_run_hooks\.mine.*export a function postRun/],
    ['is not JavaScript', 'export const = 1', /post_run_hooks\.mine.*cannot be loaded/],
  ])('fail the start of the node when a module %s', async (name, text, message) => {
    const path = await moduleOf(`hook ${name}`.replaceAll(' ', '-'), text);
    await expect(loadPostRunHooks(listed('mine', path), systemClock)).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringMatching(message),
    });
  });
});

describe('the custom evaluators of a node', () => {
  it('are loaded under the names that tasks use', async () => {
    const text =
      'export const createEvaluator = () => ({ checkConfig() {}, evaluate: async () => ({ reward: 1, details: {} }) });';
    const [evaluator, ...others] = await loadEvaluators({ mine: await moduleOf('evaluator', text) });
    expect(evaluator?.name).toBe('mine');
    expect(others).toEqual([]);
  });

  it('fail the start of the node when a module cannot be loaded or exports none', async () => {
    const paths = [join(dir, 'absent.mjs'), await moduleOf('no-evaluator', 'export const createBuilder = 1;')];
    for (const path of paths) {
      await expect(loadEvaluators({ mine: path })).rejects.toMatchObject({
        code: 'setup_failed',
        message: expect.stringContaining('evaluators.mine'),
      });
    }
  });
});
