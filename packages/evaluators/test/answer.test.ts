import { FloeError, systemClock } from '@floe-rl/core';
import { evaluatorSpecSchema } from '@floe-rl/core/schema';
import type { Runtime } from '@floe-rl/sandbox';
import { afterEach, describe, expect, it } from 'vitest';
import type { Evaluation } from '../src/evaluator.ts';
import type { MathChecker, MathQuestion, MathVerdict } from '../src/math/checker.ts';
import { evaluatorRegistry } from '../src/registry.ts';
import { type DirectoryRuntime, directoryRuntime, shell } from './directory-runtime.ts';
import { sessionOf } from './evaluated-session.ts';

const open: DirectoryRuntime[] = [];
afterEach(async () => {
  for (const runtime of open.splice(0)) await runtime.stop();
});

const NO_RUNTIME = {} as Runtime;

async function grade(
  config: Record<string, unknown>,
  answer: string,
  { math, runtime = NO_RUNTIME }: { readonly math?: MathChecker; readonly runtime?: Runtime } = {},
): Promise<Evaluation> {
  const spec = {
    strategy: 'answer',
    config: { kind: 'exact', expected: 'Paris', ...config },
    env: {},
    refresh_runtime: null,
  };
  const evaluator = evaluatorRegistry(systemClock, math === undefined ? {} : { math }).get('answer');
  const context = { spec, status: 'COMPLETED' as const, runtime, freshRuntime: null, session: sessionOf(answer) };
  return evaluator.evaluate(context, new AbortController().signal);
}

/** A comparison that gives `verdict`, and records the questions. */
function checkerOf(verdict: MathVerdict): MathChecker & { readonly questions: MathQuestion[] } {
  const questions: MathQuestion[] = [];
  return {
    questions,
    check: async (question) => {
      questions.push(question);
      return verdict;
    },
    close: async () => {},
  };
}

describe('the evaluator answer', () => {
  it.each<[string, Record<string, unknown>, string, number]>([
    ['the same text', {}, ' Paris\n', 1],
    ['another text', {}, 'Paris!', 0],
    ['another case', {}, 'paris', 0],
    ['another case where it is ignored', { ignore_case: true }, 'PARIS', 1],
    ['one of several right texts', { expected: ['Rome', 'Paris'] }, 'Paris', 1],
    ['the text in a box', { from: 'boxed' }, 'It is \\boxed{Paris} or not.', 1],
    [
      'the first group of the last match',
      { from: 'pattern', pattern: '^Answer: (\\w+)$' },
      'Answer: Rome\nAnswer: Paris\nx',
      1,
    ],
    ['the whole match of a pattern without groups', { from: 'pattern', pattern: 'P[a-z]+' }, 'in Paris.', 1],
    ['the right choice', { kind: 'choice', expected: 'B' }, 'The answer is (B)', 1],
    ['another choice', { kind: 'choice', expected: ['A', 'C'] }, 'B', 0],
    ['half of the words', { kind: 'f1', expected: 'Paris, France' }, 'Paris', 2 / 3],
    ['enough of the words', { kind: 'f1', expected: 'Paris, France', threshold: 0.6 }, 'Paris', 1],
    ['too few of the words', { kind: 'f1', expected: 'Paris, France', threshold: 0.7 }, 'Paris', 0],
  ])('compares %s', async (_, config, answer, reward) => {
    expect((await grade(config, answer)).reward).toBeCloseTo(reward);
  });

  it('has the answer, the choice and the scores in its details and components', async () => {
    expect(await grade({ kind: 'choice', expected: 'B' }, 'x'.repeat(600))).toMatchObject({
      details: { answer: 'x'.repeat(500), failure: 'no_choice' },
    });
    expect(await grade({ kind: 'choice', expected: 'B' }, '(A)')).toMatchObject({ details: { choice: 'A' } });
    expect(await grade({ kind: 'f1', threshold: 1 }, 'the Paris')).toMatchObject({
      reward: 1,
      components: { f1: 1, exact: 0 },
    });
  });

  it.each<[string, Record<string, unknown>, string]>([
    ['an empty message', {}, ' \n'],
    ['a message without a box', { from: 'boxed' }, 'Paris'],
    ['a message that the pattern does not match', { from: 'pattern', pattern: 'x(.)' }, 'Paris'],
  ])('gives 0 for %s', async (_, config, answer) => {
    expect(await grade(config, answer)).toEqual({ reward: 0, details: { failure: 'no_answer' } });
  });

  it('gives 0 for a message that keeps the pattern busy', async () => {
    const graded = await grade({ from: 'pattern', pattern: '^(a+)+$' }, `${'a'.repeat(60)}!`);
    expect(graded).toEqual({ reward: 0, details: { failure: 'pattern_timeout' } });
  });

  it("reads the answer from a file in the agent's runtime", async () => {
    const runtime = await directoryRuntime();
    open.push(runtime);
    await shell(runtime, 'mkdir out; echo Paris > out/answer.txt; head -c 1100000 /dev/zero > large');
    const from = (file: string, broken: Partial<Runtime> = {}) =>
      grade({ from: 'file', file }, 'Rome', { runtime: { ...runtime, ...broken } });
    expect((await from('out/answer.txt')).reward).toBe(1);
    expect(await from('absent')).toMatchObject({ reward: 0, details: { failure: 'no_answer' } });
    expect(await from('large')).toMatchObject({ reward: 0, details: { failure: 'answer_unreadable' } });
    const died = new FloeError('runtime_failed', 'the spawn helper died', { helper: 'died' });
    await expect(from('absent', { readFile: () => Promise.reject(died) })).rejects.toBe(died);
  });
});

describe('a mathematical answer', () => {
  const config = { kind: 'math', expected: '$\\frac{1}{2}$' };

  it.each<[MathVerdict, number, Record<string, unknown>]>([
    ['equal', 1, { verdict: 'equal' }],
    ['different', 0, { verdict: 'different' }],
    ['unreadable', 0, { verdict: 'unreadable' }],
    ['timeout', 0, { failure: 'comparison_timeout' }],
    ['failed', 0, { failure: 'comparison_failed' }],
  ])('that is %s gives %i', async (verdict, reward, details) => {
    const math = checkerOf(verdict);
    expect(await grade(config, 'so \\boxed{$0.5$}', { math })).toMatchObject({ reward, details });
    expect(math.questions).toEqual([{ expected: ['\\frac{1}{2}'], answer: '0.5', extract: false }]);
  });

  it('is searched in the whole message only if the task takes that', async () => {
    const math = checkerOf('equal');
    await grade({ ...config, from: 'last_message' }, 'It is 0.5.', { math });
    await grade({ ...config, from: 'last_message' }, `${'x'.repeat(5_000)} 0.5`, { math });
    expect(math.questions.map(({ answer, extract }) => [answer.length, extract])).toEqual([
      [10, true],
      [4_000, true],
    ]);
  });

  it('needs no comparison when it is identical or too long', async () => {
    expect(await grade(config, '\\boxed{\\frac{1}{2}}')).toMatchObject({
      reward: 1,
      details: { verdict: 'identical' },
    });
    expect(await grade(config, `\\boxed{${'1+'.repeat(2_001)}1}`)).toMatchObject({
      reward: 0,
      details: { failure: 'answer_too_long' },
    });
  });

  it('has no reward when the expected answer cannot be read or nothing can compare them', async () => {
    await expect(grade(config, '\\boxed{1}', { math: checkerOf('bad_expected') })).rejects.toMatchObject({
      code: 'evaluator_failed',
      message: expect.stringContaining('config.expected'),
    });
    await expect(grade(config, '\\boxed{1}')).rejects.toMatchObject({ code: 'evaluator_failed' });
  });
});

describe('a task with the evaluator answer', () => {
  const check = (config: Record<string, unknown>): void =>
    evaluatorRegistry().check(
      evaluatorSpecSchema.parse({ strategy: 'answer', config: { kind: 'exact', expected: 'x', ...config } }),
    );

  it.each<[string, Record<string, unknown>]>([
    ['kind', { kind: 'regex' }],
    ['expected', { expected: undefined }],
    ['expected', { expected: [] }],
    ['expected', { kind: 'choice', expected: 'AB' }],
    ['expected', { kind: 'math', expected: '$ $' }],
    ['from', { from: 'somewhere' }],
    ['pattern', { from: 'pattern' }],
    ['pattern', { from: 'pattern', pattern: '(' }],
    ['pattern', { pattern: 'x' }],
    ['file', { from: 'file' }],
    ['file', { from: 'file', file: '../x' }],
    ['file', { file: 'x' }],
    ['ignore_case', { kind: 'f1', ignore_case: true }],
    ['threshold', { threshold: 0.5 }],
    ['threshold', { kind: 'f1', threshold: 0 }],
  ])('is refused with the name of the field %s', (field, config) => {
    expect(() => check(config)).toThrow(
      expect.objectContaining({
        code: 'schema_violation',
        message: expect.stringContaining(`evaluator.config.${field}`),
      }),
    );
  });
});
