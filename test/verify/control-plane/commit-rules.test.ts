import { beforeEach, describe, expect, it } from 'vitest';
import type { StoreTables } from '../../../src/store/index.ts';
import { CommitRules } from '../../../verify/control-plane/commit-rules.ts';
import { Dice } from '../../../verify/control-plane/dice.ts';
import { History } from '../../../verify/control-plane/history.ts';
import { MemoryDatabase } from '../../../verify/control-plane/memory-store/database.ts';
import { planOf } from '../../../verify/control-plane/plan.ts';
import { SimDisk } from '../../../verify/control-plane/sim-disk.ts';
import { Timeline } from '../../../verify/control-plane/timeline.ts';
import { addSessions, taskRow } from '../../store/store-rows.ts';

let timeline: Timeline;
let database: MemoryDatabase;
beforeEach(async () => {
  timeline = new Timeline();
  const plan = { ...planOf(1), calm: false };
  let rules: CommitRules | null = null;
  const disk = new SimDisk(timeline, new Dice(1), (changes) => rules?.check(changes));
  database = new MemoryDatabase(disk);
  rules = new CommitRules(timeline, database.state, new History(timeline), plan);
  await commit(async (tables) => {
    await tables.tasks.insert(taskRow('t', { total_sessions: 2, request: '{"num_samples":2,"refill":0}' }));
    await addSessions(tables, 't', ['s0', 's1']);
  });
});

/** What is found broken by the time that a transaction is safe. */
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

describe('what is committed', () => {
  it('is let pass when it is in order', async () => {
    expect(timeline.violation).toBeNull();
    expect(await commit((tables) => tables.sessions.update('s0', { turns: 1 }))).toBeNull();
  });

  it('may not lease to a node that is not there', async () => {
    expect(await commit(lease('s0'))).toBe('claims');
  });

  it('may not bring a session back under the same epoch', async () => {
    await commit((tables) => tables.sessions.update('s0', { status: 'RUNNING', node_id: 'n', lease_expires_ms: 9 }));
    const back = { status: 'QUEUED' as const, node_id: null, lease_expires_ms: null };
    expect(await commit((tables) => tables.sessions.update('s0', back))).toBe('epochs');
  });

  it('may not end a session without a result', async () => {
    expect(await commit((tables) => tables.sessions.update('s0', { status: 'CANCELLED' }))).toBe('one result');
  });

  it('may not count what is not there', async () => {
    const ended = { sessions: 1, rewardSum: 0, rewardCount: 0, usable: 0, inBaseline: 0 };
    expect(await commit((tables) => tables.tasks.addEnded('t', ended))).toBe('conservation');
  });
});
