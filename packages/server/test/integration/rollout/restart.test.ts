import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { FloeClient, NodeApi } from '@floe-rl/client';
import { entryPath, FloeError, VirtualClock } from '@floe-rl/core';
import type { Lease, SessionResult, SubmitReply } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Caller } from '../../rollout/call.ts';
import { REGISTRATION, summaryOf, TRAJECTORY, task, Workbench } from '../../rollout/workbench.ts';

let clock: VirtualClock;
let bench: Workbench;
beforeEach(async () => {
  clock = new VirtualClock();
  bench = await Workbench.create(clock);
});
afterEach(() => bench.dispose());

describe('a restarted server', () => {
  it('refuses an empty database beside the blobs of another one, and changes no blob', async () => {
    const { blobs } = await bench.open();
    const { ref } = await blobs.put(Buffer.from('a result of a lost database'));
    await expect(bench.server()).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringContaining(`such as ${ref}`),
    });
    expect(String(await blobs.get(ref))).toBe('a result of a lost database');
  });

  it('accepts blobs beside a database whose tasks have all been removed', async () => {
    const config = { retain_tasks_hours: 1 };
    const before = await bench.server(config);
    const caller = new Caller(before.server);
    await caller.register('n1');
    const { task_id } = await caller.submit(task());
    const [lease] = await caller.lease('n1');
    if (lease === undefined) throw new Error('a session was leased');
    await caller.deliver('n1', summaryOf(lease));
    await before.close();
    const { store } = await bench.open();
    await store.transaction(async (tables) => {
      await tables.results.collectTasks([task_id]);
      expect(await tables.tasks.removeEnded(Number.MAX_SAFE_INTEGER, 10)).toEqual({ tasks: 1, sessions: 1 });
    });
    await expect(bench.server(config)).resolves.toBeDefined();
  });

  it('has queued, leased and finished sessions as they were before', async () => {
    const before = await bench.server();
    let caller = new Caller(before.server);
    await caller.register('n1');
    const { task_id, session_ids } = await caller.submit(task({ num_samples: 3, idempotency_key: 'k' }));
    const [done, held] = await caller.lease('n1', 2);
    if (done === undefined || held === undefined) throw new Error('two sessions were leased');
    await caller.deliver('n1', summaryOf(done));
    clock.advance(20_000);
    await before.close();
    clock.advance(3_600_000);

    const after = await bench.server();
    caller = new Caller(after.server);
    await after.server.sweep();
    const states = await Promise.all(session_ids.map((id) => caller.session(id)));
    expect(states.map((view) => view.status)).toEqual(['COMPLETED', 'LEASED', 'QUEUED']);
    expect((await caller.submit(task({ num_samples: 3, idempotency_key: 'k' }))).task_id).toBe(task_id);
    // 20 of the lease's 30 seconds had passed before the server closed. The hour without a server does not count, so 10 seconds are left.
    clock.advance(9_999);
    await after.server.sweep();
    expect((await caller.deliver('n1', summaryOf(held))).body).toMatchObject({ duplicate: false, cursor: 2 });
    expect((await caller.deliver('n1', summaryOf(done))).body).toMatchObject({ duplicate: true, cursor: 1 });
    expect((await caller.lease('n1', 5)).map((lease) => lease.session_id)).toEqual([session_ids[2]]);
  });

  it('takes back a lease that expires after the restart', async () => {
    const before = await bench.server();
    await new Caller(before.server).register('n1');
    const { session_ids } = await new Caller(before.server).submit(task());
    await new Caller(before.server).lease('n1');
    await before.close();
    const after = await bench.server();
    clock.advance(30_000);
    await after.server.sweep();
    expect(await new Caller(after.server).session(session_ids[0] ?? '')).toMatchObject({ status: 'QUEUED', epoch: 2 });
  });

  class Child {
    readonly url: string;
    private readonly process: ChildProcess;

    private constructor(process: ChildProcess, url: string) {
      this.process = process;
      this.url = url;
    }

    static async start(directory: string): Promise<Child> {
      const script = entryPath(import.meta.url, '../../../../../verify/fixtures/server-process.js');
      const child = spawn(process.execPath, [script, directory], { stdio: ['ignore', 'pipe', 'inherit'] });
      for await (const line of createInterface({ input: child.stdout })) return new Child(child, line);
      throw new Error('the server ended before it listened; compile it with npm run verify');
    }

    async kill(): Promise<void> {
      const exited = once(this.process, 'exit');
      this.process.kill('SIGKILL');
      await exited;
    }
  }

  /** Makes a call to the server. Returns `null` when the answer was lost because the connection broke. */
  async function attempt<T>(work: () => Promise<T>): Promise<T | null> {
    try {
      return await work();
    } catch (thrown) {
      if (FloeError.is(thrown) && thrown.code === 'peer_unreachable') return null;
      throw thrown;
    }
  }

  it('has everything that was acknowledged before kill -9 in the middle of submits and results', async () => {
    const acknowledged: SubmitReply[] = [];
    const delivered = new Map<string, Lease>();
    const open: Lease[] = [];
    for (let round = 0; round < 4; round++) {
      const child = await Child.start(bench.directory);
      const client = new FloeClient({ url: child.url });
      const node = new NodeApi({ url: child.url, nodeId: 'n1' });
      // The node leases two sessions for each result that it delivers, so over all rounds it must be able to hold many sessions.
      await node.register({ ...REGISTRATION, max_run_workers: 1000 });
      const deliveredBefore = delivered.size;
      let answers = 0;
      let killed: Promise<void> | null = null;
      // The server is killed after its n-th answer, where n grows with each round, but not before it has accepted four results.
      // Other calls are in progress at that moment.
      const countAnswer = (): void => {
        answers++;
        if (answers >= 30 + round * 7 && delivered.size >= deliveredBefore + 4) killed ??= child.kill();
      };
      const submitter = async (lane: number): Promise<void> => {
        for (let i = 0; killed === null; i++) {
          const reply = await attempt(() =>
            client.submit(task({ task_id: `t-${round}-${lane}-${i}`, num_samples: 2 })),
          );
          if (reply === null) continue;
          acknowledged.push(reply);
          countAnswer();
        }
      };
      const worker = async (): Promise<void> => {
        while (killed === null) {
          open.push(...((await attempt(() => node.lease({ slots: 2, wait_seconds: 1 }))) ?? []));
          const lease = open.pop();
          if (lease === undefined) continue;
          const result = { summary: summaryOf(lease), trajectory: TRAJECTORY, completions: null, artifacts: null };
          const reply = await attempt(() => node.deliverResult(result));
          if (reply === null) {
            open.push(lease);
            continue;
          }
          delivered.set(lease.session_id, lease);
          countAnswer();
        }
      };
      await Promise.all([submitter(0), submitter(1), submitter(2), worker(), worker()]);
      await killed;
      await client.close();
      await node.close();
    }
    const survivor = await bench.server();
    const caller = new Caller(survivor.server);
    expect(acknowledged.length).toBeGreaterThan(40);
    expect(delivered.size).toBeGreaterThanOrEqual(16);
    for (const reply of acknowledged) {
      const { body } = await caller.call<{ sessions: { session_id: string }[] }>(
        'GET',
        `/tasks/${reply.task_id}/sessions`,
      );
      expect(body.sessions.map((session) => session.session_id)).toEqual(reply.session_ids);
    }
    const { body } = await caller.call<{ results: SessionResult[] }>('GET', '/rollout/results?limit=1000');
    const stored = body.results.map((result) => result.session_id);
    expect(new Set(stored).size).toBe(stored.length);
    for (const sessionId of delivered.keys()) expect(stored).toContain(sessionId);
    for (const result of body.results) expect(result.trajectory).toEqual(JSON.parse(TRAJECTORY.toString()));
  }, 240_000);
});
