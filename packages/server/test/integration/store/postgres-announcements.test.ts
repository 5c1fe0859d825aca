import { randomUUID } from 'node:crypto';
import { MIB, systemClock } from '@floe-rl/core';
import pg from 'pg';
import { expect, it } from 'vitest';
import { describeIf } from '../../../../../test/skip.ts';
import { PostgresStore } from '../../../src/store/postgres/store.ts';
import { postgresMissing, usePostgres } from '../../store/postgres.ts';

const open = (url: string) => PostgresStore.open(url, { clock: systemClock });

describeIf(postgresMissing(), 'announcements', () => {
  const cluster = usePostgres();

  /** Collects in `heard` all messages that a store receives. `until(count)` resolves once the store has received `count` messages. */
  function ear(store: PostgresStore): { readonly heard: string[]; until(count: number): Promise<void> } {
    const heard: string[] = [];
    let check: () => void = () => {};
    store.listen((message) => {
      heard.push(message);
      check();
    });
    return {
      heard,
      until: (count) =>
        new Promise((resolve) => {
          check = () => {
            if (heard.length >= count) resolve();
          };
          check();
        }),
    };
  }

  it('reach the other servers, complete and in order, but not the sender', async () => {
    const url = await cluster().createDatabase();
    const [first, second, third] = await Promise.all([open(url), open(url), open(url)]);
    const [atFirst, atSecond, atThird] = [ear(first), ear(second), ear(third)];
    const messages = [
      'plain',
      'x'.repeat(100_000),
      '日本語 🦆 \u0000 \n "',
      '',
      ...Array.from({ length: 500 }, (_, i) => `${i}`),
    ];
    for (const message of messages) first.announce(message);
    await Promise.all([atSecond.until(messages.length), atThird.until(messages.length)]);
    expect(atSecond.heard).toEqual(messages);
    expect(atThird.heard).toEqual(messages);
    second.announce('back');
    await atFirst.until(1);
    expect(atFirst.heard).toEqual(['back']);
    await Promise.all([first, second, third].map((store) => store.close()));
  });

  it('are dropped when they are longer than 2 MiB, and do not prevent later ones', async () => {
    const url = await cluster().createDatabase();
    const [store, sender] = [await open(url), new pg.Client({ connectionString: url })];
    await sender.connect();
    const heard = ear(store);
    const ownId = randomUUID();
    const send = async (message: string): Promise<void> => {
      const parts = JSON.stringify([message]).match(/.{1,7900}/g) ?? [];
      const texts = parts.map((part, index) => `${ownId} ${index}${index + 1 === parts.length ? '.' : '+'}${part}`);
      await sender.query(`select pg_notify('floe', part) from unnest($1::text[]) as part`, [texts]);
    };
    await send('short');
    await send('x'.repeat(3 * MIB));
    await send('later');
    await heard.until(2);
    expect(heard.heard).toEqual(['short', 'later']);
    await Promise.all([sender.end(), store.close()]);
  });

  it('arrive after the server was down and is back, and end with the listener', async () => {
    const url = await cluster().createDatabase();
    const [first, second] = await Promise.all([open(url), open(url)]);
    await cluster().restart({ kill: true });
    const heard = ear(second);
    // Both stores reconnect in the background. The message is sent repeatedly, because messages are lost until both stores are connected.
    const repeat = systemClockEvery(20, () => first.announce('again'));
    await heard.until(1);
    repeat();
    expect(heard.heard[0]).toBe('again');
    await Promise.all([first.close(), second.close()]);
  });
});

function systemClockEvery(ms: number, call: () => void): () => void {
  let cancel = systemClock.schedule(ms, function again() {
    call();
    cancel = systemClock.schedule(ms, again);
  });
  return () => cancel();
}
