import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { chooseBackend } from '../../src/cli/backend.ts';
import type { SessionStatus, TaskRequestInput } from '../../src/schema/index.ts';
import { leftOf } from './gateway-process.ts';
import { processesOf } from './processes.ts';
import { oneCall, startTestStack, type TestStack } from './stack.ts';

const choice = await chooseBackend();
const backends = choice.problem === null ? (['bubblewrap', 'local'] as const) : (['local'] as const);
const POLL = { timeout: 20_000, interval: 10 };
const LONG = { timeout: 60_000 };

/** Ignores what it can ignore, and leaves its process group with its output open. */
function stubborn(marker: string): string {
  return `trap "" TERM HUP INT; export FLOE_MARK=${marker}; (setsid sh -c "sleep 600 & sleep 600" &); sleep 600`;
}

const shell = (custom_shell: string): TaskRequestInput['agent'] => ({ harness: 'shell', custom_shell });

type Edge = {
  readonly stage: string;
  readonly task: (marker: string) => TaskRequestInput;
  /** Something of the command that is running when the session is cancelled. */
  readonly seen: (marker: string) => string;
  /** Where that would be seen in an earlier stage too. */
  readonly status?: SessionStatus;
};

const EDGES: readonly Edge[] = [
  {
    stage: 'INIT, in a prepare action',
    task: (marker) => ({
      instruction: 'x',
      runtime: { prepare: [{ type: 'exec', command: stubborn(marker) }] },
      agent: shell('true'),
    }),
    seen: (marker) => `FLOE_MARK=${marker}`,
  },
  {
    stage: 'RUNNING',
    task: (marker) => ({ instruction: 'x', agent: shell(`${oneCall('hi')}; ${stubborn(marker)}`) }),
    seen: (marker) => `FLOE_MARK=${marker}`,
  },
  {
    stage: 'the evaluation',
    task: (marker) => ({
      instruction: 'x',
      agent: shell(oneCall('hi')),
      evaluator: {
        strategy: 'test_on_output',
        config: { test_command: stubborn(marker), expected_output_json: { a: 'PASSED' } },
      },
    }),
    seen: (marker) => `FLOE_MARK=${marker}`,
  },
  {
    stage: 'the collection of artifacts',
    task: (marker) => ({
      instruction: 'x',
      // Noise takes its time to be compressed.
      agent: shell(`${oneCall('hi')}; head -c 200M /dev/urandom > ${marker}`),
      artifacts: { paths: [`./${marker}`], max_mb: 256 },
    }),
    seen: (marker) => marker,
    status: 'POSTRUN',
  },
];

describe.each(backends)('a session in a %s sandbox that is cancelled', (backend) => {
  let stack: TestStack;
  beforeAll(async () => {
    stack = await startTestStack({
      node: { default_backend: backend, pools: { init: 1, ready: 0, run: 1, postrun: 1 } },
    });
  });
  afterAll(() => stack.close());

  /** The node's only slot is free again, and nothing is left of what held it. */
  async function expectFree(session: string): Promise<void> {
    expect(await stack.client.session(session)).toMatchObject({ status: 'CANCELLED' });
    const [next] = await stack.run({ instruction: 'x', agent: shell(oneCall('next')) });
    expect(next).toMatchObject({ outcome: 'completed', attempt: 1 });
    const stateDir = join(stack.dir, 'gateway');
    await expect.poll(() => leftOf(stateDir), POLL).toEqual([]);
    await expect.poll(() => readdir(join(stateDir, 'attempts')), POLL).toEqual([]);
  }

  it.each(EDGES)(
    'in $stage ends with all of its processes, and its place is free',
    LONG,
    async ({ stage, task, seen, status }) => {
      const marker = `floe-test-cancel-${backend}-${stage.replaceAll(/[^a-z]/gi, '')}`;
      const { session_ids } = await stack.client.submit(task(marker));
      const [session = ''] = session_ids;
      if (status !== undefined) {
        await expect.poll(async () => (await stack.client.session(session)).status, POLL).toBe(status);
      }
      await expect.poll(() => processesOf(seen(marker)).length, POLL).toBeGreaterThan(0);
      await stack.client.cancelSession(session);
      await expectFree(session);
      expect(processesOf(seen(marker))).toEqual([]);
    },
  );

  it('while it waits in READY leaves the one that runs alone', LONG, async () => {
    const roomy = await startTestStack({
      node: { default_backend: backend, pools: { init: 2, ready: 1, run: 1, postrun: 1 } },
    });
    try {
      const marker = `floe-test-cancel-ready-${backend}`;
      const { session_ids } = await roomy.client.submit({
        instruction: 'x',
        agent: shell(`FLOE_MARK=${marker} sleep 600`),
        num_samples: 2,
      });
      const statuses = async (): Promise<string[]> =>
        Promise.all(session_ids.map(async (id) => (await roomy.client.session(id)).status));
      await expect.poll(async () => (await statuses()).sort(), POLL).toEqual(['READY', 'RUNNING']);
      await expect.poll(() => processesOf(`FLOE_MARK=${marker}`).length, POLL).toBeGreaterThan(0);
      const waiting = session_ids[(await statuses()).indexOf('READY')] as string;
      await roomy.client.cancelSession(waiting);
      const sandboxes = async (): Promise<string[]> => {
        const dir = join(roomy.dir, 'gateway', 'sessions', `${backend}-${process.pid}`);
        return (await readdir(dir)).filter((name) => !name.startsWith('.'));
      };
      await expect.poll(async () => (await sandboxes()).length, POLL).toBe(1);
      expect((await sandboxes())[0]).not.toContain(waiting);
      expect((await statuses()).sort()).toEqual(['CANCELLED', 'RUNNING']);
    } finally {
      await roomy.close();
    }
  });

  it('at any moment of its creation leaves nothing', LONG, async () => {
    const sessions: string[] = [];
    for (let i = 0; i < 12; i++) {
      const events = stack.client.events();
      const first = events[Symbol.asyncIterator]().next();
      const { session_ids } = await stack.client.submit({ instruction: 'x', agent: shell('sleep 600') });
      const [session = ''] = session_ids;
      sessions.push(session);
      await first;
      // Each a few turns of the event loop later than the one before: while it is leased, recorded, created, prepared.
      for (let turns = 0; turns < i * 40; turns++) await new Promise((resolve) => setImmediate(resolve));
      await stack.client.cancelSession(session);
    }
    await expectFree(sessions.at(-1) as string);
    for (const session of sessions) expect((await stack.client.session(session)).status).toBe('CANCELLED');
  });
});
