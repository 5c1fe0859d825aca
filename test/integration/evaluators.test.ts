import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import { mathVerifyPython } from '@floe-rl/node';
import { parseScenarios, startSim } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { harnessDir } from '#floe/commands/home';
import { itIf } from '../skip.ts';
import { oneCall, startTestStack, type TestStack, workingBackends } from './stack.ts';

const GIT = 'git -c user.name=test -c user.email=test@localhost -c commit.gpgsign=false';
const REPOSITORY = `git init -q . && echo old > work.txt && git add -A && ${GIT} commit -q -m start`;

describe.each(await workingBackends())('a session that is evaluated in the back end %s', (backend) => {
  let stack: TestStack;
  beforeAll(async () => {
    stack = await startTestStack({ node: { default_backend: backend } });
  });
  afterAll(() => stack.close());

  /** Runs an agent that makes one model call and then runs `work`. */
  async function run(
    work: string,
    evaluator: TaskRequestInput['evaluator'],
    fields: Partial<TaskRequestInput> = {},
  ): Promise<SessionResult> {
    const [result] = await stack.run({
      instruction: 'Work.',
      agent: { harness: 'shell', custom_shell: `${oneCall('hello')}; ${work}` },
      evaluator,
      max_attempts: 1,
      ...fields,
    });
    if (result === undefined) throw new Error('the session has a result');
    return result;
  }

  it("has the components and the trace rewards of a script that read the agent's files in a fresh runtime", async () => {
    const script = `
      const fs = require('fs');
      const session = JSON.parse(fs.readFileSync(process.env.FLOE_SESSION));
      const { trace_id, completion_ids } = session.traces[0];
      const answered = session.messages.at(-1).role === 'assistant';
      fs.writeFileSync(process.env.FLOE_REWARD, JSON.stringify({
        reward: Number(fs.readFileSync('out/answer.txt')) / 84,
        components: { answered: answered ? 1 : 0, hidden: fs.existsSync('left.txt') ? 1 : 0 },
        trace_rewards: { [trace_id]: 0.25 },
        step_rewards: { [completion_ids[0]]: -1 },
        details: { instruction: session.instruction },
      }));`;
    const result = await run('mkdir out; echo 42 > out/answer.txt; touch left.txt', {
      strategy: 'script',
      config: { command: 'node grade.js', files: { 'grade.js': script }, carry: 'paths', paths: ['out'] },
    });
    expect(result).toMatchObject({
      outcome: 'completed',
      reward: 0.5,
      reward_components: { answered: 1, hidden: 0 },
      reward_details: { carried_files: 1, reported: { instruction: 'Work.' } },
    });
    expect(result.trajectory?.traces).toMatchObject([{ reward: 0.25, metadata: { step_rewards: [-1] } }]);
  });

  it("runs the task's own files, also where the agent put a link in the place of their folder", async () => {
    const evaluator = (check: string) => ({
      strategy: 'script',
      config: {
        command: 'sh tests/check.sh > "$FLOE_REWARD"',
        files: { 'tests/check.sh': check },
      },
    });
    const work = 'echo new > work.txt; mkdir own; echo "echo 1" > own/check.sh; ln -s own tests';
    const fields = { runtime: { prepare: [{ type: 'exec' as const, command: REPOSITORY }] } };
    const result = await run(work, evaluator('if grep -q new work.txt; then echo 0.125; fi'), fields);
    expect(result).toMatchObject({ outcome: 'completed', reward: 0.125 });
  });

  it('is a verifier_error without a reward when the script writes none', async () => {
    const result = await run('true', { strategy: 'script', config: { command: 'true', carry: 'none' } });
    expect(result).toMatchObject({
      ...{ outcome: 'verifier_error', reward: null, reward_components: {} },
      error: { code: 'evaluator_failed', details: { failure: 'no_reward' } },
    });
    expect(result.trajectory?.traces).toMatchObject([{ reward: null }]);
  });

  it('has the share of the hidden cases that its solution passes', async () => {
    const solution = 'read x; [ "$x" != 2 ] || { rm -f echo.sh; kill -9 $$; }; echo "$x"';
    const cases = [1, 2, 3].map((n) => ({ stdin: String(n), stdout: String(n) }));
    const result = await run(`echo '${solution}' > echo.sh`, {
      strategy: 'code_tests',
      config: {
        solution: { path: 'echo.sh' },
        command: 'sh echo.sh',
        cases: [cases[0], cases[2], cases[1]],
        reward_granularity: 'pass_rate',
      },
    });
    expect(result.reward_components.pass_rate).toBeCloseTo(2 / 3);
    expect(result).toMatchObject({ outcome: 'completed', reward_details: { passed: 2, failed: { 2: 'crashed' } } });
  });

  it('has the weighted sum of several evaluators', async () => {
    const script = { strategy: 'script', config: { command: 'echo 0.5 > "$FLOE_REWARD"', carry: 'none' } };
    const result = await run('true', {
      strategy: 'multi',
      config: {
        evaluators: [
          { name: 'script', weight: 2, evaluator: script },
          { name: 'completed', weight: -1, evaluator: { strategy: 'session_completed' } },
        ],
      },
    });
    expect(result).toMatchObject({ reward: 0, reward_components: { script: 0.5, completed: 1 } });
  });

  it('has a fresh runtime for each of several evaluators, without the files of the one before', async () => {
    const command = 'if [ -e seen ]; then echo 0; else echo 1; fi > "$FLOE_REWARD"; touch seen';
    const evaluator = { strategy: 'script', config: { command, carry: 'none' } };
    const evaluators = ['first', 'second', 'third'].map((name) => ({ name, evaluator }));
    const result = await run('touch seen', { strategy: 'multi', config: { evaluators } });
    expect(result).toMatchObject({ reward: 3, reward_components: { first: 1, second: 1, third: 1 } });
  });
});

const python = await mathVerifyPython(process.env.FLOE_TEST_HARNESS_DIR ?? harnessDir());

describe('a session whose final answer is evaluated', () => {
  const rules = [{ reply: [{ text: 'It is half of one: \\boxed{0.5}.' }] }];
  let stack: TestStack;
  beforeAll(async () => {
    const scenarios = parseScenarios({ scenarios: [{ name: 'half', rules }] }, 'the scenarios');
    stack = await startTestStack({ scenarios, node: { math_python: python ?? '/nonexistent/python' } });
  });
  afterAll(() => stack.close());

  async function run(config: Record<string, unknown>): Promise<SessionResult | undefined> {
    const [result] = await stack.run({
      instruction: 'How much is half?',
      agent: { harness: 'shell', custom_shell: oneCall('How much is half?') },
      evaluator: { strategy: 'answer', config },
      max_attempts: 1,
    });
    return result;
  }

  it('has a reward for the answer in the last message', async () => {
    const config = { kind: 'f1', from: 'pattern', pattern: 'half of (.*?):', expected: 'the one' };
    expect(await run(config)).toMatchObject({
      outcome: 'completed',
      reward: 1,
      reward_components: { f1: 1, exact: 0 },
      reward_details: { answer: 'one' },
    });
  });

  itIf(
    python === null ? 'math-verify is not installed: floe evaluator install math_verify' : null,
    'has a reward for an equal expression',
    async () => {
      const equal = { reward: 1, reward_details: { answer: '0.5', verdict: 'equal' } };
      expect(await run({ kind: 'math', expected: ['\\frac{1}{2}'] })).toMatchObject(equal);
      expect(await run({ kind: 'math', expected: ['\\frac{1}{3}'] })).toMatchObject({ reward: 0 });
    },
  );
});

describe('a session that a judge evaluates', () => {
  it('has the score of the judge, whose calls are in no trajectory', async () => {
    const rules = [{ reply: [{ text: '{"score": 3, "reason": "too short"}' }] }];
    const judge = await startSim({
      scenarios: parseScenarios({ scenarios: [{ name: 'judge', rules }] }, 'the scenarios'),
    });
    const stack = await startTestStack();
    try {
      await stack.client.addEngine({ base_url: judge.url, pool: 'judge' });
      const [result] = await stack.run({
        instruction: 'Greet.',
        agent: { harness: 'shell', custom_shell: oneCall('Greet.') },
        evaluator: { strategy: 'judge', config: { rubric: 'Task: {{instruction}} Polite? {{answer}}', max: 4 } },
        max_attempts: 1,
      });
      expect(result).toMatchObject({
        ...{ outcome: 'completed', reward: 0.75, reward_components: { score: 3 }, completion_count: 1, trace_count: 1 },
        reward_details: { reason: 'too short', judge: { calls: 1 } },
      });
      expect(result?.reward_details.judge).toMatchObject({
        completion_tokens: judge.ledger.entries().at(-1)?.response_ids.length,
      });
    } finally {
      await stack.close();
      await judge.close();
    }
  });
});

describe('a session on a node with a post-run hook', () => {
  it('has the reward and the reason of the hook, which is a module in the configuration of the node', async () => {
    const dir = await mkdtemp(join(tmpdir(), 'floe-hook-'));
    const path = join(dir, 'hook.mjs');
    await writeFile(
      path,
      `export function postRun({ task, session, evaluation, summary }) {
        const details = { answered: session.messages.at(-1).role, tokens: summary.trainable_tokens };
        return { reward: evaluation.reward * 2, components: { doubled: 1 }, details, drop: task.metadata.drop };
      }`,
    );
    const stack = await startTestStack({ node: { post_run_hooks: [{ name: 'double', module: path }] } });
    try {
      const [result] = await stack.run({
        instruction: 'Greet.',
        agent: { harness: 'shell', custom_shell: oneCall('Greet.') },
        evaluator: { strategy: 'session_completed' },
        metadata: { drop: 'a test' },
      });
      expect(result).toMatchObject({
        ...{
          outcome: 'completed',
          reward: 2,
          reward_components: { doubled: 1 },
          dropped: 'a test',
          unusable: 'dropped',
        },
        reward_details: { status: 'COMPLETED', answered: 'assistant', tokens: result?.trainable_tokens },
      });
      expect(result?.trajectory?.traces).toMatchObject([{ reward: 2 }]);
    } finally {
      await stack.close();
      await rm(dir, { recursive: true });
    }
  });
});

describe('a session on a node with a custom evaluator', () => {
  it('has the reward of the evaluator, which is a module in the configuration of the node', async () => {
    const dir = await mkdtemp(join(tmpdir(), 'floe-evaluator-'));
    const path = join(dir, 'evaluator.mjs');
    await writeFile(
      path,
      `export const createEvaluator = ({ refusal }) => ({
        freshRuntimeByDefault: false,
        checkConfig(config) {
          if (!(config.words > 0)) throw refusal('words', 'must be positive');
        },
        async evaluate({ session, spec }) {
          const words = session.messages.at(-1).content.split(/\\s+/).length;
          return { reward: words >= spec.config.words ? 1 : 0, details: { words } };
        },
      });`,
    );
    const stack = await startTestStack({ server: { evaluators: ['wordy'] }, node: { evaluators: { wordy: path } } });
    const run = async (words: number): Promise<SessionResult | undefined> => {
      const [result] = await stack.run({
        instruction: 'Greet.',
        agent: { harness: 'shell', custom_shell: oneCall('Greet.') },
        evaluator: { strategy: 'wordy', config: { words } },
        max_attempts: 1,
      });
      return result;
    };
    try {
      expect(await run(1)).toMatchObject({
        outcome: 'completed',
        reward: 1,
        reward_details: { words: expect.any(Number) },
      });
      expect(await run(100_000)).toMatchObject({ outcome: 'completed', reward: 0 });
      expect(await run(0)).toMatchObject({ outcome: 'env_error', reward: null, error: { code: 'schema_violation' } });
    } finally {
      await stack.close();
      await rm(dir, { recursive: true });
    }
  });
});
