import { EventEmitter } from 'node:events';
import { FloeError, raceAbort } from '@floe-rl/core';
import { expect, it } from 'vitest';
import { Channel, type Port } from '../../../src/gateway/processes/channel.ts';

type Greeter = {
  greet(name: string): Promise<string>;
  wait(_: undefined, signal: AbortSignal): Promise<string>;
};

/** Returns the ends of a connection. Messages are copied and arrive later, as between processes. */
function portPair(): [Port & EventEmitter, Port & EventEmitter] {
  const end = (): EventEmitter & { connected: boolean } => Object.assign(new EventEmitter(), { connected: true });
  const [one, other] = [end(), end()];
  const sendTo = (target: EventEmitter) => (message: unknown) => {
    const copy = structuredClone(message);
    return setImmediate(() => target.emit('message', copy)) !== null;
  };
  return [Object.assign(one, { send: sendTo(other) }), Object.assign(other, { send: sendTo(one) })];
}

function connect(operations: Partial<Greeter>): Channel<Greeter> {
  const [one, other] = portPair();
  new Channel(other, operations as Greeter);
  return new Channel<Greeter>(one, {});
}

it('returns the results of concurrent calls to their callers', async () => {
  const channel = connect({ greet: async (name) => `Hello, ${name}.` });
  const greetings = await Promise.all(['Ada', 'Max'].map((name) => channel.call('greet', name)));
  expect(greetings).toEqual(['Hello, Ada.', 'Hello, Max.']);
});

it('rejects with the code and the details of the error on the other side', async () => {
  const channel = connect({
    greet: () => Promise.reject(new FloeError('stale_epoch', 'too late', { session_id: 'ses_1' })),
  });
  await expect(channel.call('greet', 'Ada')).rejects.toMatchObject({
    code: 'stale_epoch',
    message: 'too late',
    details: { session_id: 'ses_1' },
  });
});

it('aborts the operation on the other side, and settles as that operation does', async () => {
  const abort = new AbortController();
  const channel = connect({
    wait: (_, signal) => raceAbort(new Promise<string>(() => {}), signal).catch(() => 'stopped'),
  });
  const waiting = channel.call('wait', undefined, abort.signal);
  abort.abort();
  expect(await waiting).toBe('stopped');
});

it('rejects running and later calls once it is closed', async () => {
  const channel = connect({ wait: () => new Promise<string>(() => {}) });
  const waiting = channel.call('wait', undefined);
  channel.close(new FloeError('node_died', 'gone'));
  await expect(waiting).rejects.toMatchObject({ code: 'node_died' });
  await expect(channel.call('greet', 'Ada')).rejects.toMatchObject({ code: 'node_died' });
});

it('rejects a call with an argument that cannot be sent, and no other promise', async () => {
  const channel = connect({ greet: async (name) => name });
  await expect(channel.call('greet', (() => {}) as unknown as string)).rejects.toThrow('could not be cloned');
  channel.close(new FloeError('node_died', 'gone'));
});
