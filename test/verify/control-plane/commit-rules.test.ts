import { beforeEach, describe, expect, it } from 'vitest';
import type { StoreTables } from '#server/store/index';
import { addSessions, taskRow } from '../../../packages/server/test/store/store-rows.ts';
import { CommitRules } from '../../../verify/control-plane/commit-rules.ts';
import { History } from '../../../verify/control-plane/history.ts';
import { MemoryDatabase } from '../../../verify/control-plane/memory-store/database.ts';
import { createPlan } from '../../../verify/control-plane/plan.ts';
import { SeededRandom } from '../../../verify/control-plane/random.ts';
import { SimDisk } from '../../../verify/control-plane/sim-store.ts';
import { Timeline } from '../../../verify/control-plane/timeline.ts';

let timeline: Timeline;
let database: MemoryDatabase;
beforeEach(async () => {
  timeline = new Timeline();
  const plan = { ...createPlan(1), isFaultless: false };
  let rules: CommitRules | null = null;
  const disk = new SimDisk(timeline, new SeededRandom(1), (changes) => rules?.check(changes), plan.syncMs);
  database = new MemoryDatabase(disk);
  rules = new CommitRules(timeline, database.state, new History(timeline), plan);
  await commit(async (tables) => {
    await tables.tasks.insert(taskRow('t', { total_sessions: 2, request: '{"num_samples":2,"refill":0}' }));
    await addSessions(tables, 't', ['s0', 's1']);
  });
});

/** Runs a transaction until it is on the simulated disk. Resolves to the invariant that it violates; `null` when it violates none. */
async function commit(work: (tables: StoreTables) => Promise<unknown>): Promise<string | null> {
  let synced = false;
  const running = database.run(work).finally(() => {
    synced = true;
  });
  while (!synced) {
    await new Promise(setImmediate);
    timeline.clock.fireNext();
  }
  await running;
  return timeline.violation?.invariant ?? null;
}

const lease = (id: string) => (tables: StoreTables) =>
  tables.sessions.update(id, { status: 'LEASED', node_id: 'n', lease_expires_ms: 9_000 });

describe('CommitRules', () => {
  it('reports nothing for a change that violates no rule', async () => {
    expect(timeline.violation).toBeNull();
    expect(await commit((tables) => tables.sessions.update('s0', { turns: 1 }))).toBeNull();
  });

  it('reports a lease to a node that is not registered', async () => {
    expect(await commit(lease('s0'))).toBe('claims');
  });

  it('reports a session that returns to the queue with the same epoch', async () => {
    await commit((tables) => tables.sessions.update('s0', { status: 'RUNNING', node_id: 'n', lease_expires_ms: 9 }));
    const back = { status: 'QUEUED' as const, node_id: null, lease_expires_ms: null };
    expect(await commit((tables) => tables.sessions.update('s0', back))).toBe('epochs');
  });

  it('reports a session that ends without a result', async () => {
    expect(await commit((tables) => tables.sessions.update('s0', { status: 'CANCELLED' }))).toBe('one result');
  });

  it('reports a task that counts sessions that have not ended', async () => {
    const ended = { sessions: 1, rewardSum: 0, rewardCount: 0, usable: 0, inBaseline: 0 };
    expect(await commit((tables) => tables.tasks.addEnded('t', ended))).toBe('conservation');
  });
});
