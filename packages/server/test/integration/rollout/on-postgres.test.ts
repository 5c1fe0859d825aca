import { systemClock } from '@floe-rl/core';
import type { EnginesStatus } from '@floe-rl/core/schema';
import pg from 'pg';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { describeIf } from '../../../../../test/skip.ts';
import { createRolloutServer, type RolloutServer } from '../../../src/rollout/index.ts';
import { PostgresStore } from '../../../src/store/postgres/store.ts';
import { Caller } from '../../rollout/call.ts';
import { MemoryBlobs } from '../../rollout/memory-blobs.ts';
import { summaryOf, task } from '../../rollout/workbench.ts';
import { postgresMissing, usePostgres } from '../../store/postgres.ts';

/**
 * PostgreSQL is needed by these tests rather than another store, because its transactions run concurrently and a failed statement aborts its
 * transaction.
 */
describeIf(postgresMissing(), 'the server on PostgreSQL', () => {
  const cluster = usePostgres();
  let store: PostgresStore;
  let server: RolloutServer;
  let caller: Caller;
  /** A second database client. The tests use it to hold locks while the server runs. */
  let lockHolder: pg.Client;

  beforeEach(async () => {
    const url = await cluster().createDatabase();
    store = await PostgresStore.open(url, { clock: systemClock });
    const deps = { store, blobs: new MemoryBlobs(), clock: systemClock, validateTask: () => {} };
    server = await createRolloutServer({ port: 0, lease_seconds: 60 }, deps);
    caller = new Caller(server);
    lockHolder = new pg.Client({ connectionString: url });
    await lockHolder.connect();
  });

  afterEach(async () => {
    await lockHolder.end();
    await server.close();
    await store.close();
  });

  it('refuses a result that the database cannot store with the reason of the statement that failed', async () => {
    await lockHolder.query(`
      create function full_disk() returns trigger language plpgsql as
        $$ begin raise exception 'no space left on device' using errcode = '53100'; end $$;
      create trigger full_disk before insert on deliveries for each row execute function full_disk()`);
    await caller.submit(task());
    await caller.register('n1');
    const [lease] = await caller.lease('n1');
    if (lease === undefined) throw new Error('there was no session to lease');
    const refused = await caller.deliver('n1', summaryOf(lease));
    expect(refused.body.error).toMatchObject({ code: 'store_unavailable', details: { code: '53100' } });
  });

  it('does not wait in an early stop for a session that a heartbeat holds, and ends it as soon as it can', async () => {
    const { task_id } = await caller.submit(task({ num_samples: 3, early_stop_min_usable_sessions: 1 }));
    await caller.register('n1');
    await server.listen();
    const [won, held] = await caller.lease('n1', 2);
    if (won === undefined || held === undefined) throw new Error('there were no two sessions to lease');
    await lockHolder.query('begin');
    await lockHolder.query('select 1 from sessions where session_id = $1 for update', [held.session_id]);
    const delivered = await caller.deliver('n1', summaryOf(won));
    expect(delivered).toMatchObject({ status: 200, body: { requeued: false } });
    expect((await caller.session(held.session_id)).status).toBe('LEASED');
    expect(await caller.taskStatus(task_id)).toMatchObject({ completed_sessions: 2, group: { open: 1 } });
    await lockHolder.query('commit');
    await expect.poll(() => caller.taskStatus(task_id), { timeout: 90_000 }).toMatchObject({ status: 'completed' });
    expect((await caller.session(held.session_id)).status).toBe('CANCELLED');
  });

  /** Resolves when a transaction of the server waits for a lock that `lockHolder` holds. */
  const blocked = () =>
    expect
      .poll(async () => (await lockHolder.query('select 1 from pg_locks where not granted')).rowCount, {
        timeout: 90_000,
      })
      .toBe(1);

  it('locks the task of an expired lease before the session, as a cancellation does', async () => {
    const { task_id } = await caller.submit(task());
    await caller.register('n1');
    const [lease] = await caller.lease('n1');
    if (lease === undefined) throw new Error('there was no session to lease');
    await lockHolder.query('update sessions set lease_expires_ms = 1');
    await lockHolder.query('begin');
    await lockHolder.query('select 1 from tasks where task_id = $1 for update', [task_id]);
    const swept = server.sweep();
    await blocked();
    // The statement fails if the server already holds the lock of the session while it waits for the task's lock.
    const session = lockHolder.query('select 1 from sessions where session_id = $1 for update nowait', [
      lease.session_id,
    ]);
    expect((await session).rowCount).toBe(1);
    await lockHolder.query('commit');
    await swept;
    expect(await caller.session(lease.session_id)).toMatchObject({ status: 'QUEUED', attempt: 2 });
  });

  it('accepts other requests while many results of one task wait for its row', async () => {
    const { task_id } = await caller.submit(task({ num_samples: 20 }));
    await caller.register('n1', { max_init_workers: 20 });
    const leases = await caller.lease('n1', 20);
    expect(leases).toHaveLength(20);
    await lockHolder.query('begin');
    await lockHolder.query('select 1 from tasks where task_id = $1 for update', [task_id]);
    const delivered = Promise.all(leases.map((lease) => caller.deliver('n1', summaryOf(lease))));
    await expect
      .poll(async () => (await lockHolder.query('select 1 from pg_locks where not granted')).rowCount, {
        timeout: 90_000,
      })
      .toBeGreaterThan(0);
    await caller.submit(task());
    await lockHolder.query('commit');
    expect((await delivered).map(({ status }) => status)).toEqual(leases.map(() => 200));
    expect(await caller.taskStatus(task_id)).toMatchObject({ status: 'completed' });
  });

  it('applies concurrent engine changes of two servers one after the other', async () => {
    await caller.call('POST', '/engines', { engine_id: 'mine', kind: 'vllm', base_url: 'http://127.0.0.1:9' });
    await lockHolder.query('begin');
    await lockHolder.query(`update engine_state set revision = revision + 1, removed = '["theirs"]'`);
    const removed = caller.call('DELETE', '/engines/mine?wait=0');
    await blocked();
    await lockHolder.query('commit');
    expect((await removed).status).toBe(200);
    const { body } = await caller.call<EnginesStatus>('GET', '/engines');
    expect(body).toMatchObject({ engines: [], removed: ['theirs', 'mine'] });
  });

  it('refuses the second of two consumers that start with one name for two trainers', async () => {
    await lockHolder.query('begin');
    await lockHolder.query(`insert into consumers (consumer, trainer, cursor) values ('c', 'a', 0)`);
    const second = caller.call('GET', '/rollout/results?consumer=c&trainer=b');
    await blocked();
    await lockHolder.query('commit');
    expect(await second).toMatchObject({ status: 409, body: { error: { code: 'conflict' } } });
    expect((await caller.call('GET', '/rollout/results?consumer=c&trainer=a')).status).toBe(200);
  });

  it.each([
    ['epoch', { epoch: 2 ** 31 }],
    ['attempt', { attempt: -1 }],
    ['reward', { reward: 1e308 }],
    ['agent.turns', { agent: { exit_code: 0, turns: 2 ** 31, stdout_tail: '', stderr_tail: '', isolation: 'none' } }],
  ] as const)('a result whose %s no column holds is refused for good', async (path, fields) => {
    await caller.submit(task());
    await caller.register('n1');
    const [lease] = await caller.lease('n1');
    if (lease === undefined) throw new Error('there was no session to lease');
    const refused = await caller.deliver('n1', summaryOf(lease, 'completed', fields));
    expect(refused).toMatchObject({ status: 422, body: { error: { details: { issues: [{ path }] } } } });
  });
});
