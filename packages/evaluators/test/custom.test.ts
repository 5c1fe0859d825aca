import { FloeError } from '@floe-rl/core';
import { evaluatorSpecSchema } from '@floe-rl/core/schema';
import type { Runtime } from '@floe-rl/sandbox';
import { describe, expect, it } from 'vitest';
import { customEvaluator, type EvaluatorKit, evaluatorOfNodes } from '../src/custom.ts';
import type { EvaluationContext, Evaluator } from '../src/evaluator.ts';
import { evaluatorRegistry } from '../src/registry.ts';
import { sessionOf } from './evaluated-session.ts';

const never = new AbortController().signal;

const CONTEXT: EvaluationContext = {
  spec: evaluatorSpecSchema.parse({ strategy: 'mine', config: { words: 2 } }),
  status: 'COMPLETED',
  runtime: {} as Runtime,
  freshRuntime: null,
  session: sessionOf(),
};

const evaluatorOf = (parts: object): Evaluator =>
  customEvaluator('mine', 'the module', {
    createEvaluator: () => ({ checkConfig() {}, evaluate: async () => ({ reward: 1, details: {} }), ...parts }),
  });

describe('a custom evaluator', () => {
  it('evaluates a session under the name that the operator gave it', async () => {
    const evaluator = evaluatorOf({
      evaluate: async ({ session, spec }: EvaluationContext) => ({
        reward: session.messages.length,
        details: spec.config,
      }),
    });
    expect(evaluator.name).toBe('mine');
    expect(await evaluator.evaluate(CONTEXT, never)).toEqual({ reward: 2, details: { words: 2 } });
  });

  it('uses a fresh runtime unless it says otherwise', () => {
    expect(evaluatorOf({}).freshRuntimeByDefault).toBe(true);
    expect(evaluatorOf({ freshRuntimeByDefault: false }).freshRuntimeByDefault).toBe(false);
  });

  it('refuses a configuration with the name of the field', () => {
    const module = {
      createEvaluator: ({ refusal }: EvaluatorKit) => ({
        checkConfig: () => {
          throw refusal('words', 'must be positive');
        },
        evaluate: async () => ({ reward: 1, details: {} }),
      }),
    };
    expect(() => customEvaluator('mine', 'x', module).checkConfig({})).toThrow(
      expect.objectContaining({ code: 'schema_violation', message: 'evaluator.config.words: must be positive' }),
    );
  });

  it.each<[string, () => unknown]>([
    [
      'throws',
      () => {
        throw new TypeError('oh');
      },
    ],
    ['rejects', () => Promise.reject(new Error('oh'))],
  ])('fails with evaluator_failed when it %s', async (_, evaluate) => {
    await expect(evaluatorOf({ evaluate }).evaluate(CONTEXT, never)).rejects.toMatchObject({
      code: 'evaluator_failed',
      message: 'evaluator mine: oh',
    });
  });

  it('fails with evaluator_failed when it cannot check a configuration', () => {
    const checkConfig = (): void => {
      throw new TypeError('oh');
    };
    expect(() => evaluatorOf({ checkConfig }).checkConfig({})).toThrow(
      expect.objectContaining({ code: 'evaluator_failed', message: 'evaluator mine: oh' }),
    );
  });

  it("keeps the errors of floe's own functions, so that a failed host is no fault of the verifier", async () => {
    const died = new FloeError('runtime_failed', 'the spawn helper died', { helper: 'died' });
    await expect(evaluatorOf({ evaluate: () => Promise.reject(died) }).evaluate(CONTEXT, never)).rejects.toBe(died);
  });

  it('is not waited for when its signal has aborted', async () => {
    const controller = new AbortController();
    const evaluation = evaluatorOf({ evaluate: () => new Promise(() => {}) }).evaluate(CONTEXT, controller.signal);
    const late = new FloeError('deadline_exceeded', 'the budget is used up');
    controller.abort(late);
    await expect(evaluation).rejects.toBe(late);
  });

  it.each<[string, Record<string, unknown>]>([
    ['exports nothing', {}],
    ['makes no evaluator', { createEvaluator: () => null }],
    ['makes an evaluator without evaluate', { createEvaluator: () => ({ checkConfig() {} }) }],
    [
      'fails to make one',
      {
        createEvaluator: () => {
          throw new Error('no');
        },
      },
    ],
  ])('is refused when its module %s', (_, module) => {
    expect(() => customEvaluator('mine', 'the module', module)).toThrow(
      expect.objectContaining({ code: 'setup_failed', message: expect.stringContaining('the module') }),
    );
  });
});

describe('a registry with custom evaluators', () => {
  it('finds them, also as members of multi, and refuses the name of another evaluator', () => {
    const registry = evaluatorRegistry(undefined, {}, [evaluatorOf({ freshRuntimeByDefault: false })]);
    expect(registry.names()).toContain('mine');
    const config = { evaluators: [{ name: 'a', evaluator: { strategy: 'mine' } }] };
    expect(() => registry.check(evaluatorSpecSchema.parse({ strategy: 'multi', config }))).not.toThrow();
    expect(() => evaluatorRegistry(undefined, {}, [evaluatorOfNodes('script')])).toThrow(
      expect.objectContaining({ code: 'setup_failed', message: expect.stringContaining('"script"') }),
    );
  });

  it('accepts any configuration of an evaluator of which a server knows only the name', async () => {
    const registry = evaluatorRegistry(undefined, {}, [evaluatorOfNodes('theirs')]);
    expect(() => registry.check(evaluatorSpecSchema.parse({ strategy: 'theirs', config: { any: 1 } }))).not.toThrow();
    expect(() => registry.check(evaluatorSpecSchema.parse({ strategy: 'their' }))).toThrow(
      expect.objectContaining({ code: 'unknown_evaluator' }),
    );
    await expect(registry.get('theirs').evaluate(CONTEXT, never)).rejects.toMatchObject({ code: 'evaluator_failed' });
  });
});
