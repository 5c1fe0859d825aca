import { describe, expect, it } from 'vitest';
import { type Disk, MemoryDatabase, type SyncOutcome } from '../../../../verify/control-plane/memory-store/database.ts';
import { MemoryStore } from '../../../../verify/control-plane/memory-store/store.ts';
import { describeStore } from './store-contract.ts';
import { addSessions, taskRow } from './store-rows.ts';

describeStore('MemoryStore', async () => new MemoryStore());

function diskThat(sync: () => Promise<SyncOutcome>, interrupts = (): boolean => false): Disk {
  return { sync, interrupts, committed: () => {} };
}

const taskIn = (store: MemoryStore, id: string) => store.transaction((tables) => tables.tasks.get(id));

describe('a database in memory', () => {
  it('is shared by its connections, which receive the messages of the others and not their own', async () => {
    const database = new MemoryDatabase();
    const [first, second] = [new MemoryStore(database), new MemoryStore(database)];
    const heard: string[] = [];
    first.listen((message) => heard.push(`first ${message}`));
    const end = second.listen((message) => heard.push(`second ${message}`));
    first.announce('a');
    end();
    first.announce('b');
    second.announce('c');
    await first.transaction((tables) => tables.tasks.insert(taskRow('t1')));
    expect(await taskIn(second, 't1')).toBeDefined();
    expect(heard).toEqual(['second a', 'first c']);
  });

  it('acknowledges no transaction before it is synced, and keeps none that the disk refused', async () => {
    let answer: (outcome: SyncOutcome) => void = () => {};
    const asked: Promise<void>[] = [];
    let resolveAsked: () => void = () => {};
    asked.push(new Promise((resolve) => (resolveAsked = resolve)));
    const store = new MemoryStore(
      new MemoryDatabase(
        diskThat(() => {
          resolveAsked();
          return new Promise((resolve) => (answer = resolve));
        }),
      ),
    );
    let acknowledged = false;
    const insert = store.transaction((tables) => tables.tasks.insert(taskRow('t1'))).then(() => (acknowledged = true));
    await asked[0];
    expect(acknowledged).toBe(false);
    answer('refused');
    await expect(insert).rejects.toMatchObject({ code: 'store_unavailable' });
    expect(await taskIn(store, 't1')).toBeUndefined();
  });

  it('keeps a synced transaction although its caller got an error', async () => {
    const store = new MemoryStore(new MemoryDatabase(diskThat(async () => 'unknown')));
    const insert = store.transaction((tables) => tables.tasks.insert(taskRow('t1')));
    await expect(insert).rejects.toMatchObject({ code: 'store_unavailable' });
    expect(await taskIn(store, 't1')).toBeDefined();
  });

  it('loses the transactions that were not synced when the power fails', async () => {
    let fail = (): void => {};
    const database = new MemoryDatabase(
      diskThat(async () => {
        fail();
        return 'synced';
      }),
    );
    const store = new MemoryStore(database);
    await store.transaction((tables) => addSessions(tables, 'a', ['a0', 'a1']));
    fail = () => database.losePower();
    const update = store.transaction((tables) => tables.sessions.update('a0', { turns: 5 }));
    await expect(update).rejects.toMatchObject({ code: 'store_unavailable' });
    fail = () => {};
    expect(await store.transaction((tables) => tables.sessions.get('a0'))).toMatchObject({ turns: 0 });
    expect(await store.transaction((tables) => tables.sessions.idsOfTask('a'))).toEqual(['a0', 'a1']);
  });

  it('repeats the work from the start after a conflict with another transaction', async () => {
    let left = 3;
    const database = new MemoryDatabase(
      diskThat(
        async () => 'synced',
        () => left-- > 0,
      ),
    );
    const store = new MemoryStore(database);
    let runs = 0;
    await store.transaction(async (tables) => {
      runs++;
      await tables.tasks.insert(taskRow('t1'));
    });
    expect(runs).toBe(4);
    expect(await store.transaction((tables) => tables.tasks.list({ status: null, limit: 9 }))).toHaveLength(1);
  });
});
