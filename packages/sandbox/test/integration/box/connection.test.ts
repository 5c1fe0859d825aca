import { mkdir, mkdtemp, readdir, rm, symlink } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { VirtualClock } from '@floe-rl/core';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { settle } from '../../../../node/test/gateway/session-bench.ts';
import { type BoxConnection, BoxListener } from '../../../src/box/connection.ts';
import { encodeFrame } from '../../../src/box/frames.ts';
import type { BoxReply } from '../../../src/box/messages.ts';
import { never } from '../../backends/workbench.ts';

const MAX_BODY_BYTES = 1_000;
const clock = new VirtualClock();
const OPTIONS = { clock, maxBodyBytes: MAX_BODY_BYTES };
const LOST = { code: 'runtime_failed', details: { box: 'lost' } };
const REQUEST = { argv: ['true'], env: {}, maxOutputBytes: 10 };

let dir: string;
let listener: BoxListener;
const path = (): string => join(dir, 'box.sock');
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'floe-box-'));
  listener = await BoxListener.open(path(), OPTIONS);
});
afterEach(async () => {
  await listener.close();
  await rm(dir, { recursive: true, force: true });
});

function send(socket: Socket, reply: BoxReply | object, body?: Buffer): void {
  for (const part of encodeFrame(reply, body)) socket.write(part);
}

/** Connects to the gateway as a box server does. */
async function connected(): Promise<{ readonly server: Socket; readonly connection: BoxConnection }> {
  const accepted = listener.accept(new Promise<never>(() => {}), never);
  const server = connect(path());
  send(server, { type: 'ready', environment: {}, user: null });
  return { server, connection: await accepted };
}

describe('the listener for a box server', () => {
  it('accepts only the first connection', async () => {
    const { server } = await connected();
    const other = connect(path());
    await expect(new Promise((_resolve, reject) => other.once('error', reject))).rejects.toMatchObject({
      code: 'ENOENT',
    });
    server.destroy();
  });

  it('accepts a connection that was made before', async () => {
    const server = connect(path());
    send(server, { type: 'ready', environment: { A: 'b' }, user: null });
    await new Promise((resolve) => server.once('connect', resolve));
    const connection = await listener.accept(new Promise<never>(() => {}), never);
    expect(connection.environment).toEqual({ A: 'b' });
    server.destroy();
  });

  it('closes a connection that it does not return', async () => {
    const server = connect(path());
    const closed = new Promise((resolve) => server.once('close', resolve));
    server.resume();
    await new Promise((resolve) => server.once('connect', resolve));
    await expect(listener.accept(Promise.reject(new Error('ended')), never)).rejects.toThrow('ended');
    await closed;
    expect(server.destroyed).toBe(true);
  });

  it('listens in a directory whose path is too long for a Unix socket, and leaves no file', async () => {
    const deep = join(dir, 'd'.repeat(120));
    await mkdir(deep);
    await symlink(deep, join(dir, 'short'));
    const own = await BoxListener.open(join(deep, 'box.sock'), OPTIONS);
    expect(await readdir(deep)).toEqual(['box.sock']);
    const accepted = own.accept(new Promise<never>(() => {}), never);
    const server = connect(join(dir, 'short', 'box.sock'));
    send(server, { type: 'ready', environment: {}, user: null });
    (await accepted).close();
    expect(await readdir(deep)).toEqual([]);
    server.destroy();
  });

  it('rejects when its directory with a long path does not exist', async () => {
    const deep = join(dir, 'd'.repeat(120), 'box.sock');
    await expect(BoxListener.open(deep, OPTIONS)).rejects.toMatchObject({ code: 'ENOENT' });
  });

  it('rejects with the failure of the sandbox when it ends before its box server is ready', async () => {
    const failure = new Error('the container ended');
    const accepted = listener.accept(Promise.reject(failure), never);
    await expect(accepted).rejects.toBe(failure);
  });

  it('rejects with the reason of its signal', async () => {
    const reason = new Error('stopped');
    const accepted = listener.accept(new Promise<never>(() => {}), AbortSignal.abort(reason));
    await expect(accepted).rejects.toBe(reason);
  });
});

describe('a connection to a box server that an agent has taken over', () => {
  it.each<[string, object, Buffer?]>([
    ['an unknown message', { type: 'reward', value: 1 }],
    ['a message with an additional field', { type: 'ready', environment: {}, user: null, more: 1 }],
    ['an exit code that no process has', { ...done(1), result: { ...done(1).result, exitCode: 1e9 } }],
    ['a body that is longer than the output may be', done(1), Buffer.alloc(MAX_BODY_BYTES + 1)],
  ])('is lost at %s, and so is its command', async (_what, message, body) => {
    const { server, connection } = await connected();
    const spawned = connection.spawn(REQUEST);
    send(server, { type: 'started', id: 1, pid: 5 });
    const child = await spawned;
    send(server, message, body);
    await expect(child.done).rejects.toMatchObject(LOST);
    await connection.closed;
    await expect(connection.askFiles({ type: 'check_directory', path: '/', owner: null })).rejects.toMatchObject(LOST);
  });

  it.each<[string, object]>([
    ['the end of a command that does not exist', done(77)],
    ['the start of a command that does not exist', { type: 'started', id: 77, pid: 5 }],
    ['an answer about a file that was not asked for', { type: 'file_done', id: 77 }],
    ['a second answer about a file', { type: 'file_absent', id: 1 }],
    ['an answer about a tool that was not asked for', { type: 'tool_done', id: 77 }],
    ['a second report that it is ready', { type: 'ready', environment: { PATH: '/mine' }, user: null }],
  ])('is lost at %s', async (_what, message) => {
    const { server, connection } = await connected();
    const asked = connection.askFiles({ type: 'check_directory', path: '/', owner: null });
    send(server, { type: 'file_absent', id: 1 });
    expect((await asked).reply.type).toBe('file_absent');
    send(server, message);
    await connection.closed;
    await expect(connection.spawn(REQUEST)).rejects.toMatchObject(LOST);
    expect(connection.environment).toEqual({});
  });

  it('is lost when it does not complete a message in time, however it sends bytes of it', async () => {
    const { server, connection } = await connected();
    const asked = connection.askFiles({ type: 'check_directory', path: '/', owner: null });
    const rejected = expect(asked).rejects.toMatchObject({ ...LOST, message: expect.stringContaining('in 30 s') });
    const bytes = Buffer.concat(encodeFrame({ type: 'file_done', id: 1 }));
    for (let at = 0; at < 10; at++) {
      const { receivedBytes } = connection;
      server.write(bytes.subarray(at, at + 1));
      while (connection.receivedBytes === receivedBytes) await new Promise((resolve) => setImmediate(resolve));
      clock.advance(3_000);
    }
    await connection.closed;
    await rejected;
  });

  it('has the full time for each of its messages', async () => {
    const { server, connection } = await connected();
    const bytes = Buffer.concat(encodeFrame({ type: 'file_absent', id: 1 }));
    const asked = connection.askFiles({ type: 'check_directory', path: '/', owner: null });
    const other = connection.askFiles({ type: 'check_directory', path: '/', owner: null });
    server.write(bytes.subarray(0, 9));
    await settle();
    clock.advance(29_000);
    server.write(bytes.subarray(9));
    send(server, { type: 'file_absent', id: 2 });
    for (const one of [asked, other]) expect((await one).reply.type).toBe('file_absent');
    clock.advance(60_000);
    expect(connection.hasEnded).toBe(false);
    server.destroy();
  });

  it('divides the output between stdout and stderr within the bytes that arrived', async () => {
    const { server, connection } = await connected();
    const spawned = connection.spawn(REQUEST);
    send(server, { type: 'started', id: 1, pid: 5 });
    const child = await spawned;
    send(server, { ...done(1), stdoutBytes: 1_000_000 }, Buffer.from('abc'));
    const { stdout, stderr } = await child.done;
    expect([stdout.toString(), stderr.toString()]).toEqual(['abc', '']);
    server.destroy();
  });
});

describe('a lost connection', () => {
  it('rejects every request that waits for a reply', async () => {
    const { server, connection } = await connected();
    const spawned = connection.spawn(REQUEST);
    const asked = connection.askFiles({ type: 'check_directory', path: '/', owner: null });
    const written = connection.writeFile('/file', { mode: 0o644, owner: null }, [Buffer.from('x')]);
    server.destroy();
    for (const waiting of [spawned, asked, written]) await expect(waiting).rejects.toMatchObject(LOST);
  });

  it.each([0, 1])('rejects a file of which %i parts are still to be read', async (rest) => {
    const { server, connection } = await connected();
    async function* content(): AsyncGenerator<Buffer> {
      yield Buffer.from('first');
      server.destroy();
      await connection.closed;
      for (let i = 0; i < rest; i++) yield Buffer.from('more');
    }
    await expect(connection.writeFile('/file', { mode: 0o644, owner: null }, content())).rejects.toMatchObject(LOST);
  });
});

function done(id: number) {
  const result = { exitCode: 0, signal: null, droppedBytes: 0, killedBy: null };
  return { type: 'done' as const, id, stdoutBytes: 0, result };
}
