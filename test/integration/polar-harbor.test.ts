import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { bubblewrapMissing } from '../../packages/sandbox/test/backends/workbench.ts';
import { dumpedTask, type PolarTaskStatus, polarTaskStatus } from '../../verify/clients/polar-models.ts';
import { describeIf } from '../skip.ts';
import { oneCall, startTestStack, type TestStack } from './stack.ts';

const TEST = `[ "$WANTED" = "$(cat answer.txt)" ] && [ ! -e /work/checks/planted ] || exit 1
echo 0.75 > /work/rewards/reward.txt
`;

describeIf(await bubblewrapMissing(), 'a task of a Polar client with the evaluator harbor', () => {
  let stack: TestStack;
  let dir: string;
  beforeAll(async () => {
    dir = mkdtempSync(join(tmpdir(), 'floe-polar-'));
    mkdirSync(join(dir, 'tests'));
    writeFileSync(join(dir, 'tests', 'check.sh'), TEST);
    stack = await startTestStack({
      server: { polar: 'prefix' },
      node: { default_backend: 'bubblewrap', upload_roots: [dir] },
    });
  });
  afterAll(async () => {
    await stack?.close();
    rmSync(dir, { recursive: true, force: true });
  });

  /** Submits a task whose agent writes `answer`, and resolves with its state once it has ended. */
  async function run(task_id: string, answer: string): Promise<PolarTaskStatus> {
    const work = `mkdir -p /work/checks && touch /work/checks/planted; echo ${answer} > answer.txt`;
    const task = dumpedTask({
      task_id,
      command: `${work}; ${oneCall('hi')}`,
      runtime: { backend: 'bubblewrap', network: 'none' },
      evaluator: {
        strategy: 'harbor',
        config: {
          tests_dir: join(dir, 'tests'),
          tests_target: '/work/checks',
          verifier_dir: '/work/rewards',
          test_command: 'bash /work/checks/check.sh',
          verifier_timeout: 60,
        },
        env: { WANTED: 'hello' },
        refresh_runtime: false,
      },
    });
    const url = `${stack.serverUrl}/polar/rollout/task`;
    const headers = { 'content-type': 'application/json' };
    const reply = await fetch(`${url}/submit`, { method: 'POST', headers, body: JSON.stringify(task) });
    expect([reply.status, await reply.json()]).toEqual([200, { task_id, status: 'running', warnings: [] }]);
    const read = async () => polarTaskStatus.parse(await (await fetch(`${url}/${task_id}`)).json());
    await expect.poll(async () => (await read()).status, { timeout: 60_000 }).toBe('completed');
    return read();
  }

  it('gets the reward of the tests, which ran in the sandbox of the agent with the variables of the evaluator', async () => {
    const { results } = await run('right', 'hello');
    expect(results).toMatchObject([{ status: 'COMPLETED', error: null, trajectory: { traces: [{ reward: 0.75 }] } }]);
  }, 90_000);

  it('gets the reward 0 when the test command fails', async () => {
    const { results } = await run('wrong', 'goodbye');
    expect(results).toMatchObject([{ status: 'COMPLETED', error: null, trajectory: { traces: [{ reward: 0 }] } }]);
  }, 90_000);
});
