import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { SessionStatus, TaskRequestInput } from '@floe-rl/core/schema';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { leftOf } from './gateway-process.ts';
import { processesOf, stubbornCommand } from './processes.ts';
import { oneCall, startTestStack, type TestStack, workingBackends } from './stack.ts';

const POLL = { timeout: 90_000, interval: 10 };
const LONG = { timeout: 240_000 };

const shell = (custom_shell: string): TaskRequestInput['agent'] => ({ harness: 'shell', custom_shell });

type Edge = {
  readonly stage: string;
  readonly task: (marker: string) => TaskRequestInput;
  /**
   * Returns a text that occurs in the environment or command line of a process of this stage. The session is cancelled while such a process
   * runs.
   */
  readonly runningMarker: (marker: string) => string;
  /** Status that the session must have before it is cancelled. Needed when a process with the marker also runs in an earlier stage. */
  readonly status?: SessionStatus;
};

const EDGES: readonly Edge[] = [
  {
    stage: 'INIT, in a prepare action',
    task: (marker) => ({
      instruction: 'x',
      runtime: { prepare: [{ type: 'exec', command: stubbornCommand(marker) }] },
      agent: shell('true'),
    }),
    runningMarker: (marker) => `FLOE_MARK=${marker}`,
  },
  {
    stage: 'RUNNING',
    task: (marker) => ({ instruction: 'x', agent: shell(`${oneCall('hi')}; ${stubbornCommand(marker)}`) }),
    runningMarker: (marker) => `FLOE_MARK=${marker}`,
  },
  {
    stage: 'the evaluation',
    task: (marker) => ({
      instruction: 'x',
      agent: shell(oneCall('hi')),
      evaluator: {
        strategy: 'test_on_output',
        refresh_runtime: false,
        config: { test_command: stubbornCommand(marker), expected_output_json: { a: 'PASSED' } },
      },
    }),
    runningMarker: (marker) => `FLOE_MARK=${marker}`,
  },
  {
    stage: 'the collection of artifacts',
    task: (marker) => ({
      instruction: 'x',
      // The agent leaves 200 MB of random data, which take long to compress, so that the session can be cancelled during the compression.
      agent: shell(`${oneCall('hi')}; head -c 200M /dev/urandom > ${marker}`),
      artifacts: { paths: [`./${marker}`], max_mb: 256 },
    }),
    runningMarker: (marker) => marker,
    status: 'POSTRUN',
  },
];

describe.each(await workingBackends())('a session in a %s sandbox that is cancelled', (backend) => {
  let stack: TestStack;
  beforeAll(async () => {
    stack = await startTestStack({
      node: { default_backend: backend, pools: { init: 1, ready: 0, run: 1, postrun: 1 } },
    });
  });
  afterAll(() => stack.close());

  /** Expects that the session is cancelled, that none of its processes or files is left, and that the node's only slot is free. */
  async function expectSlotFree(session: string): Promise<void> {
    expect(await stack.client.session(session)).toMatchObject({ status: 'CANCELLED' });
    const [next] = await stack.run({ instruction: 'x', agent: shell(oneCall('next')) });
    expect(next).toMatchObject({ outcome: 'completed', attempt: 1 });
    const stateDir = join(stack.dir, 'gateway');
    await expect.poll(() => leftOf(stateDir), POLL).toEqual([]);
    await expect.poll(() => readdir(join(stateDir, 'attempts')), POLL).toEqual([]);
  }

  it.each(EDGES)(
    'in $stage ends with all of its processes and frees its slot',
    LONG,
    async ({ stage, task, runningMarker, status }) => {
      const marker = `floe-test-cancel-${backend}-${stage.replaceAll(/[^a-z]/gi, '')}`;
      const { session_ids } = await stack.client.submit(task(marker));
      const [session = ''] = session_ids;
      if (status !== undefined) {
        await expect.poll(async () => (await stack.client.session(session)).status, POLL).toBe(status);
      }
      await expect.poll(() => processesOf(runningMarker(marker)).length, POLL).toBeGreaterThan(0);
      await stack.client.cancelSession(session);
      await expectSlotFree(session);
      expect(processesOf(runningMarker(marker))).toEqual([]);
    },
  );

  it('in READY leaves the running session alone', LONG, async () => {
    const larger = await startTestStack({
      node: { default_backend: backend, pools: { init: 2, ready: 1, run: 1, postrun: 1 } },
    });
    try {
      const marker = `floe-test-cancel-ready-${backend}`;
      const { session_ids } = await larger.client.submit({
        instruction: 'x',
        agent: shell(`FLOE_MARK=${marker} sleep 600`),
        num_samples: 2,
      });
      const statuses = async (): Promise<string[]> =>
        Promise.all(session_ids.map(async (id) => (await larger.client.session(id)).status));
      await expect.poll(async () => (await statuses()).sort(), POLL).toEqual(['READY', 'RUNNING']);
      await expect.poll(() => processesOf(`FLOE_MARK=${marker}`).length, POLL).toBeGreaterThan(0);
      const waiting = session_ids[(await statuses()).indexOf('READY')] as string;
      await larger.client.cancelSession(waiting);
      const sandboxes = async (): Promise<string[]> => {
        const dir = join(larger.dir, 'gateway', 'sessions', `${backend}-${process.pid}`);
        return (await readdir(dir)).filter((name) => !name.startsWith('.'));
      };
      await expect.poll(async () => (await sandboxes()).length, POLL).toBe(1);
      expect((await sandboxes())[0]).not.toContain(waiting);
      expect((await statuses()).sort()).toEqual(['CANCELLED', 'RUNNING']);
    } finally {
      await larger.close();
    }
  });

  it('at any moment of its start leaves no process or file', LONG, async () => {
    const sessions: string[] = [];
    for (let i = 0; i < 12; i++) {
      const events = stack.client.events();
      const first = events[Symbol.asyncIterator]().next();
      const { session_ids } = await stack.client.submit({ instruction: 'x', agent: shell('sleep 600') });
      const [session = ''] = session_ids;
      sessions.push(session);
      await first;
      // Each session is cancelled 40 turns of the event loop later than the previous one, to cover all moments between its lease and its
      // start.
      for (let turns = 0; turns < i * 40; turns++) await new Promise((resolve) => setImmediate(resolve));
      await stack.client.cancelSession(session);
    }
    await expectSlotFree(sessions.at(-1) as string);
    for (const session of sessions) expect((await stack.client.session(session)).status).toBe('CANCELLED');
  });
});
