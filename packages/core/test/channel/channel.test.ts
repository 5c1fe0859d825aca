import { EventEmitter } from 'node:events';
import { MessageChannel } from 'node:worker_threads';
import { describe, expect, it } from 'vitest';
import { raceAbort } from '../../src/abort.ts';
import { Channel, type ChannelOptions, movedBytes } from '../../src/channel/channel.ts';
import { type ConnectedProcess, processPort, threadPort } from '../../src/channel/ports.ts';
import { FloeError } from '../../src/errors.ts';
import { VirtualClock } from '../../src/virtual-clock.ts';

type Greeter = {
  greet(name: string): Promise<string>;
  wait(_: undefined, signal: AbortSignal): Promise<string>;
  note(text: string): void;
};

type End = ConnectedProcess & EventEmitter;

/** Returns the ends of a connection. Messages are copied and arrive later, as between processes. */
function endPair(): [End, End] {
  const end = (): EventEmitter & { connected: boolean } => Object.assign(new EventEmitter(), { connected: true });
  const [one, other] = [end(), end()];
  const sendTo =
    (target: EventEmitter) =>
    (message: unknown, _handle?: unknown, _options?: unknown, callback?: () => void): boolean => {
      const copy = structuredClone(message);
      setImmediate(() => {
        target.emit('message', copy);
        callback?.();
      });
      return true;
    };
  return [Object.assign(one, { send: sendTo(other) }), Object.assign(other, { send: sendTo(one) })];
}

function connect(
  operations: Partial<Greeter>,
  options: ChannelOptions = {},
): { channel: Channel<Greeter>; own: End; other: End } {
  const [own, other] = endPair();
  new Channel(processPort(other), { ...options, operations });
  return { channel: new Channel<Greeter>(processPort(own), options), own, other };
}

/** A promise with the function that resolves it. */
function deferred<T>(): { readonly promise: Promise<T>; readonly resolve: (value: T) => void } {
  let resolve: (value: T) => void = () => {};
  const promise = new Promise<T>((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}

const never = (_: undefined, signal: AbortSignal): Promise<string> =>
  raceAbort(new Promise<string>(() => {}), signal).catch((error: Error) => `stopped: ${error.message}`);

describe('a channel', () => {
  it('returns the results of concurrent calls to their callers', async () => {
    const { channel } = connect({ greet: async (name) => `Hello, ${name}.` });
    const greetings = await Promise.all(['Ada', 'Max'].map((name) => channel.call('greet', name)));
    expect(greetings).toEqual(['Hello, Ada.', 'Hello, Max.']);
  });

  it('rejects with the code and the details of the error on the other side', async () => {
    const { channel } = connect({
      greet: () => Promise.reject(new FloeError('stale_epoch', 'too late', { session_id: 'ses_1' })),
    });
    await expect(channel.call('greet', 'Ada')).rejects.toMatchObject({
      code: 'stale_epoch',
      message: 'too late',
      details: { session_id: 'ses_1' },
    });
  });

  it('rejects a cancelled call with the reason of its signal, and aborts the operation with it', async () => {
    const abort = new AbortController();
    const stopped = deferred<unknown>();
    const { channel } = connect({
      wait: (_, signal) => {
        stopped.resolve(raceAbort(new Promise(() => {}), signal).catch((error: unknown) => error));
        return new Promise(() => {});
      },
    });
    const reason = new FloeError('overloaded', 'enough');
    const waiting = channel.call('wait', undefined, { signal: abort.signal });
    abort.abort(reason);
    await expect(waiting).rejects.toBe(reason);
    expect(await stopped.promise).toMatchObject({ code: 'overloaded', message: 'enough' });
    await expect(channel.call('wait', undefined, { signal: abort.signal })).rejects.toBe(reason);
  });

  it('settles a cancelled call that waits for its peer as the operation then does', async () => {
    const abort = new AbortController();
    const cancelError = (): Error => new Error('the caller left');
    const { channel } = connect({ wait: never }, { cancelError });
    const waiting = channel.call('wait', undefined, { signal: abort.signal, awaitsPeer: true });
    abort.abort();
    expect(await waiting).toBe('stopped: the caller left');
  });

  it('rejects a call at its deadline, and aborts the operation', async () => {
    const clock = new VirtualClock();
    const { channel, other } = connect({ wait: never });
    const waiting = channel.call('wait', undefined, {
      deadline: { clock, limitMs: 50, error: () => new FloeError('deadline_exceeded', 'late') },
    });
    const cancelled = new Promise((resolve) => {
      other.on('message', (message: { type: string }) => message.type === 'cancel' && resolve(message));
    });
    await Promise.all([expect(waiting).rejects.toMatchObject({ code: 'deadline_exceeded' }), clock.advance(50)]);
    expect(await cancelled).toMatchObject({ id: 1 });
  });

  it('rejects running and later calls once it is closed, and aborts what runs for the other side', async () => {
    const [own, other] = endPair();
    const started = deferred<void>();
    const aborted = deferred<unknown>();
    const wait = (_: undefined, signal: AbortSignal): Promise<string> => {
      started.resolve();
      return raceAbort(new Promise<string>(() => {}), signal).catch((error: unknown) => {
        aborted.resolve(error);
        return '';
      });
    };
    const served = new Channel(processPort(other), { operations: { wait } });
    const channel = new Channel<Greeter>(processPort(own), {});
    const waiting = channel.call('wait', undefined);
    await started.promise;
    const gone = new FloeError('node_died', 'gone');
    served.close(gone);
    channel.close(gone);
    await expect(waiting).rejects.toBe(gone);
    expect(await aborted.promise).toBe(gone);
    await expect(channel.call('greet', 'Ada')).rejects.toBe(gone);
  });

  it('rejects a call with an argument that cannot be sent, and no other promise', async () => {
    const { channel } = connect({ greet: async (name) => name });
    await expect(channel.call('greet', (() => {}) as unknown as string)).rejects.toThrow('could not be cloned');
    channel.close(new FloeError('node_died', 'gone'));
  });

  it('rejects a call whose result cannot be sent', async () => {
    const { channel } = connect({ greet: async () => (() => {}) as unknown as string });
    await expect(channel.call('greet', 'Ada')).rejects.toThrow('could not be cloned');
  });

  it('runs an operation for a notice, whose failure has no effect, and reports when it was sent', async () => {
    const heard = deferred<string>();
    const { channel } = connect({
      note: (text) => {
        heard.resolve(text);
        throw new Error('no one waits for this');
      },
      greet: async () => 'still there',
    });
    const sent = deferred<void>();
    channel.notify('note', 'news', () => sent.resolve());
    expect(await heard.promise).toBe('news');
    await sent.promise;
    expect(await channel.call('greet', 'Ada')).toBe('still there');
  });

  it('reports a notice as sent when the peer has ended', async () => {
    const { channel, own } = connect({});
    Object.assign(own, { connected: false });
    await new Promise<void>((resolve) => channel.notify('note', 'news', resolve));
  });

  it.each([
    ['no object', null],
    ['a list', []],
    ['a text', 'ready'],
    ['an unknown type', { type: 'ready', id: 1 }],
    ['a result without an id', { type: 'result', value: 'forged' }],
    ['a result with an id that is no number', { type: 'result', id: '1', value: 'forged' }],
    ['a result for a call that was not made', { type: 'result', id: 2, value: 'forged' }],
    ['an error for a call that was not made', { type: 'error', id: 0, error: {} }],
    ['a cancellation of nothing', { type: 'cancel', id: 9 }],
    ['a call without a name', { type: 'call', id: 9 }],
    ['a notice without a name', { type: 'notice' }],
  ])('drops %s', async (_, junk) => {
    const { channel, own, other } = connect({ greet: async (name) => `Hello, ${name}.` });
    const greeting = channel.call('greet', 'Ada');
    for (const end of [own, other]) end.emit('message', junk);
    expect(await greeting).toBe('Hello, Ada.');
  });

  it.each(['toString', 'constructor', '__proto__', 'nothing'])(
    'has no operation %s that was not stated',
    async (name) => {
      const { channel } = connect({});
      await expect(channel.call(name as 'greet', 'Ada')).rejects.toMatchObject({
        code: 'unsupported',
        message: `this process has no operation ${name}`,
      });
    },
  );

  it.each([[undefined], [null], ['text'], [{ code: 'no_such', message: 'x' }], [{ code: 'internal' }]])(
    'rejects with an error when the error of the peer is %j',
    async (error) => {
      const [own, other] = endPair();
      const channel = new Channel<Greeter>(processPort(own), {});
      other.on(
        'message',
        ({ id }: { id: number }) => void other.send?.({ type: 'error', id, error }, undefined, undefined, () => {}),
      );
      await expect(channel.call('greet', 'Ada')).rejects.toMatchObject({ code: 'internal' });
    },
  );

  it('runs one operation for two calls with the same id', async () => {
    let runs = 0;
    const { own, channel } = connect({
      wait: () => {
        runs++;
        return new Promise(() => {});
      },
      greet: async () => `${runs}`,
    });
    for (let i = 0; i < 2; i++) own.send?.({ type: 'call', id: 7, name: 'wait' }, undefined, undefined, () => {});
    expect(await channel.call('greet', 'Ada')).toBe('1');
  });
});

describe('a channel between threads', () => {
  type Store = { load(bytes: Uint8Array): unknown };

  function connectThreads(load: (bytes: Uint8Array<ArrayBuffer>) => unknown) {
    const { port1, port2 } = new MessageChannel();
    new Channel(threadPort(port2), { operations: { load } });
    return { channel: new Channel<Store>(threadPort(port1), {}), close: () => port1.close() };
  }

  it('moves the buffers of an argument and of a result', async () => {
    const kept = new Uint8Array([4, 5, 6]);
    const { channel, close } = connectThreads(() => movedBytes(kept));
    const given = new Uint8Array([1, 2, 3]);
    expect(await channel.call('load', given, { transfer: [given.buffer] })).toEqual(new Uint8Array([4, 5, 6]));
    expect([given.byteLength, kept.byteLength]).toEqual([0, 0]);
    close();
  });

  it('copies bytes of a result that share their memory with others', async () => {
    const shared = new Uint8Array([4, 5, 6]);
    const { channel, close } = connectThreads(() => movedBytes(shared.subarray(1)));
    expect(await channel.call('load', new Uint8Array())).toEqual(new Uint8Array([5, 6]));
    expect(shared.byteLength).toBe(3);
    close();
  });
});
