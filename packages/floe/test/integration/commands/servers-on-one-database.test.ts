import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeClient } from '@floe-rl/client';
import { silentLogger } from '@floe-rl/observe';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { describeIf } from '../../../../../test/skip.ts';
import { task } from '../../../../server/test/rollout/workbench.ts';
import { postgresMissing, usePostgres } from '../../../../server/test/store/postgres.ts';
import { startServer } from '../../../src/up/stack.ts';

/** Time limit of a test that starts servers and a database, ms. It is enough on a busy machine. */
const TIMEOUT_MS = 120_000;

describeIf(postgresMissing(), 'servers on one PostgreSQL', () => {
  const cluster = usePostgres();
  let dir: string;
  const undo: (() => Promise<unknown>)[] = [];
  beforeEach(async () => {
    dir = await mkdtemp(join(tmpdir(), 'floe-servers-'));
  });
  afterEach(async () => {
    for (const close of undo.splice(0).reverse()) await close();
    await rm(dir, { recursive: true, force: true });
  });

  async function server(database: string): Promise<FloeClient> {
    // All servers of the test use the same directory. With PostgreSQL it contains only the blobs, which the servers share.
    const running = await startServer(dir, { port: 0 }, silentLogger, [], { database, blobs: null });
    undo.push(() => running.close());
    const client = new FloeClient({ url: running.url });
    undo.push(() => client.close());
    return client;
  }

  it('share tasks, and reply to a repeated submission with the same task', { timeout: TIMEOUT_MS }, async () => {
    const database = await cluster().createDatabase();
    const [first, second] = await Promise.all([server(database), server(database)]);
    const submitted = await first.submit(task({ num_samples: 3 }));
    expect(await second.task(submitted.task_id)).toMatchObject({ task_id: submitted.task_id, total_sessions: 3 });
    for (let round = 0; round < 10; round++) {
      const request = task({ idempotency_key: `key-${round}` });
      const replies = await Promise.all([first, second, first, second].map((client) => client.submit(request)));
      expect(new Set(replies.map((reply) => reply.task_id)).size).toBe(1);
      expect(replies.filter((reply) => !reply.duplicate)).toHaveLength(1);
    }
  });

  it('continue after one of them stops and after the database restarts', { timeout: TIMEOUT_MS }, async () => {
    const database = await cluster().createDatabase();
    const first = await server(database);
    const closeFirst = undo.splice(0).reverse();
    const second = await server(database);
    const { task_id: taskId } = await first.submit(task());
    for (const close of closeFirst) await close();
    await cluster().kill();
    // A process of the database may answer once more before it notices that its parent was killed.
    const submitted = (): Promise<unknown> =>
      second.submit(task()).then(
        () => 'accepted',
        (error: { code: unknown }) => error.code,
      );
    await expect.poll(submitted, { timeout: TIMEOUT_MS }).toBe('store_unavailable');
    await cluster().start();
    expect(await second.task(taskId)).toMatchObject({ task_id: taskId });
    expect((await second.submit(task({ idempotency_key: 'k' }))).duplicate).toBe(false);
  });
});
