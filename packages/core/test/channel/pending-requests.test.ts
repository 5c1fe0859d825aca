import { describe, expect, it } from 'vitest';
import { PendingRequests } from '../../src/channel/pending-requests.ts';
import { VirtualClock } from '../../src/virtual-clock.ts';

describe('pending requests', () => {
  it('settle each request with its own reply, whatever the order', async () => {
    const pending = new PendingRequests<string>();
    const [first, second] = [pending.add(undefined), pending.add(undefined)];
    expect([first.id, second.id]).toEqual([1, 2]);
    expect(pending.resolve(2, 'two')).toBe(true);
    expect(pending.reject(1, new Error('one'))).toBe(true);
    await expect(first.reply).rejects.toThrow('one');
    expect(await second.reply).toBe('two');
    expect(pending.size).toBe(0);
  });

  it('refuse a reply to an unknown id, and a second reply to a known one', () => {
    const pending = new PendingRequests<string>(0);
    const { id } = pending.add(undefined);
    expect(id).toBe(0);
    expect(pending.resolve(1, 'never asked')).toBe(false);
    expect(pending.resolve(0, 'first')).toBe(true);
    expect(pending.resolve(0, 'second')).toBe(false);
    expect(pending.reject(0, new Error('third'))).toBe(false);
  });

  it('return the facts of the requests that wait', () => {
    const pending = new PendingRequests<void, string>();
    pending.add('read');
    pending.add('write');
    pending.resolve(1, undefined);
    expect(pending.find(1)).toBeUndefined();
    expect([...pending.entries()]).toEqual([[2, 'write']]);
  });

  it('reject with the reason of a signal that aborts, and still know the request when its reply arrives', async () => {
    const abort = new AbortController();
    const pending = new PendingRequests<string>();
    const given: unknown[] = [];
    const { reply } = pending.add(undefined, { signal: abort.signal, onGivenUp: (...facts) => given.push(facts) });
    abort.abort('enough');
    await expect(reply).rejects.toBe('enough');
    expect(given).toEqual([[1, 'enough']]);
    expect(pending.resolve(1, 'late')).toBe(true);
    expect(pending.size).toBe(0);
    expect(() => pending.add(undefined, { signal: abort.signal })).toThrow('enough');
    expect(pending.size).toBe(0);
  });

  it('reject a request at its deadline, and cancel the deadline of a request with a reply', async () => {
    const clock = new VirtualClock();
    const pending = new PendingRequests<string>();
    const deadline = { clock, limitMs: 100, error: () => new Error('late') };
    const given: number[] = [];
    const [answered, silent] = [1, 2].map(() =>
      pending.add(undefined, { deadline, onGivenUp: (id) => given.push(id) }),
    );
    pending.resolve(1, 'in time');
    await clock.advance(100);
    expect(await answered?.reply).toBe('in time');
    await expect(silent?.reply).rejects.toThrow('late');
    expect(given).toEqual([2]);
  });

  it('reject all requests when the peer ends, and those that are added later, with an error for each', async () => {
    const pending = new PendingRequests<string, string>();
    const abort = new AbortController();
    const before = pending.add('before', { signal: abort.signal });
    pending.end((facts, id) => `${facts} ${id}`);
    pending.end(() => 'a second end');
    const after = pending.add('after');
    abort.abort('too late');
    await expect(before.reply).rejects.toBe('before 1');
    await expect(after.reply).rejects.toBe('after 2');
    expect(pending.size).toBe(0);
  });
});
