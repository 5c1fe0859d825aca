import { FloeError } from '@floe-rl/core';
import { type EvaluatorSpec, evaluatorSpecSchema } from '@floe-rl/core/schema';
import type { Runtime } from '@floe-rl/sandbox';
import { describe, expect, it } from 'vitest';
import { type Evaluation, type EvaluationContext, type Evaluator, usesFreshRuntime } from '../src/evaluator.ts';
import { multiEvaluator } from '../src/multi.ts';
import { evaluatorRegistry } from '../src/registry.ts';
import { sessionOf } from './evaluated-session.ts';

const AGENT = { backend: 'local' } as Runtime;
const FRESH = { backend: 'bubblewrap' } as Runtime;

type Member = { readonly name: string; readonly weight?: number; readonly evaluator?: Partial<EvaluatorSpec> };

/** An evaluator for each behaviour of a member, by name. `seen` has the contexts of all calls. */
function fakes(behaviours: Readonly<Record<string, () => Evaluation>>) {
  const seen: EvaluationContext[] = [];
  const get = (name: string): Evaluator => ({
    name,
    freshRuntimeByDefault: name.startsWith('fresh'),
    checkConfig: () => {},
    evaluate: async (context) => {
      seen.push(context);
      return (behaviours[name] as () => Evaluation)();
    },
  });
  return { multi: multiEvaluator({ get, check: () => {} }), seen };
}

function specOf(members: readonly Member[], fields: Partial<EvaluatorSpec> = {}): EvaluatorSpec {
  const evaluators = members.map(({ name, evaluator, ...rest }) => {
    return { name, evaluator: { strategy: name, ...evaluator }, ...rest };
  });
  return evaluatorSpecSchema.parse({ strategy: 'multi', config: { evaluators }, ...fields });
}

async function evaluate(
  behaviours: Readonly<Record<string, () => Evaluation>>,
  weights: Readonly<Record<string, number>> = {},
  fields: Partial<EvaluatorSpec> = {},
) {
  const { multi, seen } = fakes(behaviours);
  const renewed: Runtime[] = [];
  const members = Object.keys(behaviours).map((name) => ({
    name,
    weight: weights[name] ?? 1,
    evaluator: { env: { A: name } },
  }));
  const context = {
    spec: specOf(members, fields),
    status: 'COMPLETED' as const,
    runtime: AGENT,
    freshRuntime: FRESH,
    renewFreshRuntime: async () => {
      renewed.push({ backend: 'docker' } as Runtime);
      return renewed.at(-1) as Runtime;
    },
    session: sessionOf(),
  };
  return { evaluation: await multi.evaluate(context, new AbortController().signal), seen, renewed };
}

const gives =
  (reward: number | null, rest: Partial<Evaluation> = {}) =>
  () => ({ reward, details: {}, ...rest });
const fails = (code: 'evaluator_failed' | 'runtime_failed') => () => {
  throw new FloeError(code, 'it broke');
};

describe('the evaluator multi', () => {
  it('gives the weighted sum, and each reward and its components by name', async () => {
    const { evaluation } = await evaluate(
      {
        tests: gives(1, { components: { passed: 3 }, details: { ran: 4 } }),
        style: gives(-0.5),
        length: gives(7),
      },
      { tests: 0.8, style: 0.5, length: 0 },
    );
    expect(evaluation).toEqual({
      reward: expect.closeTo(0.55),
      components: { tests: 1, 'tests.passed': 3, style: -0.5, length: 7 },
      details: { tests: { ran: 4 }, style: {}, length: {} },
      traceRewards: {},
      stepRewards: {},
    });
  });

  it('has no reward when that of a member with a weight is null, and ignores one with weight 0', async () => {
    const members = { a: gives(null), b: gives(0.5) };
    expect((await evaluate(members)).evaluation).toMatchObject({ reward: null, components: { a: null, b: 0.5 } });
    expect((await evaluate(members, { a: 0 })).evaluation.reward).toBe(0.5);
  });

  it('fails with a member that has a weight, and records the failure of one with weight 0', async () => {
    const members = { a: gives(1), b: fails('evaluator_failed') };
    await expect(evaluate(members)).rejects.toMatchObject({ code: 'evaluator_failed' });
    expect((await evaluate(members, { b: 0 })).evaluation).toMatchObject({
      reward: 1,
      components: { a: 1, b: null },
      details: { b: { error: 'it broke' } },
    });
  });

  it('fails with any member when the infrastructure fails, so that the session is retried', async () => {
    const members = { a: gives(1), b: fails('runtime_failed') };
    await expect(evaluate(members, { b: 0 })).rejects.toMatchObject({ code: 'runtime_failed' });
  });

  it('sums up the rewards of traces and replies by weight', async () => {
    const { evaluation } = await evaluate(
      {
        a: gives(1, { traceRewards: { t0: 3 }, stepRewards: { c0: 1 } }),
        b: gives(0.5, { stepRewards: { c0: 2, c1: 4 } }),
        c: gives(9, { traceRewards: { t1: 9 }, stepRewards: { c2: 9 } }),
      },
      { a: 2, b: 0.5, c: 0 },
    );
    expect(evaluation).toMatchObject({
      reward: 2.25,
      traceRewards: { t0: 2 * 3 + 0.5 * 0.5 },
      stepRewards: { c0: 2 * 1 + 0.5 * 2, c1: 0.5 * 4 },
    });
    expect(evaluation.traceRewards).not.toHaveProperty('t1');
    expect(evaluation.stepRewards).not.toHaveProperty('c2');
  });

  it('gives the fresh runtime only to the member that uses it, and each the variables of both specs', async () => {
    const members = { here: gives(1), fresh: gives(1) };
    const { seen } = await evaluate(members, {}, { env: { A: 'outer', B: 'outer' } });
    expect(seen.map(({ freshRuntime }) => freshRuntime)).toEqual([null, FRESH]);
    expect(seen.map(({ spec }) => spec.env)).toEqual([
      { A: 'here', B: 'outer' },
      { A: 'fresh', B: 'outer' },
    ]);
    const inPlace = await evaluate(members, {}, { refresh_runtime: false });
    expect(inPlace.seen.map(({ freshRuntime }) => freshRuntime)).toEqual([null, null]);
    expect(inPlace.seen.map(({ spec }) => spec.refresh_runtime)).toEqual([false, false]);
  });

  it('gives each further member that uses a fresh runtime another one', async () => {
    const members = { fresh1: gives(1), here: gives(1), fresh2: gives(1), fresh3: gives(1) };
    const { seen, renewed } = await evaluate(members);
    expect(renewed).toHaveLength(2);
    expect(seen.map(({ freshRuntime }) => freshRuntime)).toEqual([FRESH, null, renewed[0], renewed[1]]);
    expect(seen[2]?.freshRuntime).not.toBe(seen[3]?.freshRuntime);
    expect((await evaluate(members, {}, { refresh_runtime: false })).renewed).toEqual([]);
  });
});

describe('a task with the evaluator multi', () => {
  const registry = evaluatorRegistry();
  const tests = { strategy: 'test_on_output', config: { test_command: 'x', expected_output_json: { a: 'PASSED' } } };
  const done = { strategy: 'session_completed' };
  const check = (evaluators: unknown, fields: object = {}) =>
    registry.check(evaluatorSpecSchema.parse({ strategy: 'multi', config: { evaluators }, ...fields }));
  const uses = (evaluators: unknown): boolean =>
    usesFreshRuntime(evaluatorSpecSchema.parse({ strategy: 'multi', config: { evaluators } }), registry.get('multi'));

  it('uses a fresh runtime when a member does', () => {
    const nested = { strategy: 'multi', config: { evaluators: [{ name: 'inner', evaluator: tests }] } };
    expect(uses([{ name: 'a', evaluator: done }])).toBe(false);
    expect(uses([{ name: 'a', evaluator: { ...tests, refresh_runtime: false } }])).toBe(false);
    expect(
      uses([
        { name: 'a', evaluator: done },
        { name: 'b', evaluator: tests },
      ]),
    ).toBe(true);
    expect(uses([{ name: 'a', evaluator: nested }])).toBe(true);
  });

  it('is accepted with members that contain the evaluator itself', () => {
    const inner = { strategy: 'multi', config: { evaluators: [{ name: 'b', weight: -1, evaluator: tests }] } };
    expect(() =>
      check([
        { name: 'a', evaluator: inner },
        { name: 'c', evaluator: done },
      ]),
    ).not.toThrow();
  });

  it.each<[string, unknown, object, string]>([
    ['no members', [], {}, 'evaluator.config.evaluators'],
    [
      'members of the same name',
      [
        { name: 'a', evaluator: done },
        { name: 'a', evaluator: done },
      ],
      {},
      'evaluator.config.evaluators',
    ],
    ['a name with a dot', [{ name: 'a.b', evaluator: done }], {}, 'evaluator.config.evaluators.0.name'],
    [
      'a weight that is not a number',
      [{ name: 'a', weight: 'x', evaluator: done }],
      {},
      'evaluator.config.evaluators.0.weight',
    ],
    [
      "a field that a member's evaluator refuses",
      [
        { name: 'a', evaluator: done },
        { name: 'b', evaluator: { ...tests, config: { ...tests.config, test_timeout: 0 } } },
      ],
      {},
      'evaluator.config.evaluators.1.evaluator.config.test_timeout',
    ],
    [
      'a field that an evaluator of a nested member refuses',
      [
        {
          name: 'a',
          evaluator: {
            strategy: 'multi',
            config: { evaluators: [{ name: 'b', evaluator: { strategy: 'session_completed', config: { x: 1 } } }] },
          },
        },
      ],
      {},
      'evaluator.config.evaluators.0.evaluator.config.evaluators.0.evaluator.config',
    ],
  ])('is refused with %s', (_, evaluators, fields, path) => {
    expect(() => check(evaluators, fields)).toThrow(
      expect.objectContaining({
        code: 'schema_violation',
        details: { issues: [expect.objectContaining({ path })] },
      }),
    );
  });

  it('is refused with the number of the member whose evaluator is unknown or needs a fresh runtime that it does not get', () => {
    const excluding = { ...tests, config: { ...tests.config, exclude_patterns: ['tests/*'] } };
    expect(() => check([{ name: 'a', evaluator: { strategy: 'nope' } }])).toThrow(
      expect.objectContaining({
        code: 'unknown_evaluator',
        message: expect.stringContaining('evaluator.config.evaluators.0.evaluator'),
      }),
    );
    expect(() => check([{ name: 'a', evaluator: excluding }])).not.toThrow();
    expect(() => check([{ name: 'a', evaluator: excluding }], { refresh_runtime: false })).toThrow(
      expect.objectContaining({ code: 'schema_violation', message: expect.stringContaining('evaluators.0.evaluator') }),
    );
  });

  it('may have several members that use a fresh runtime', () => {
    const twice = [
      { name: 'a', evaluator: tests },
      { name: 'b', evaluator: tests },
    ];
    expect(() => check(twice)).not.toThrow();
    expect(uses(twice)).toBe(true);
  });
});
