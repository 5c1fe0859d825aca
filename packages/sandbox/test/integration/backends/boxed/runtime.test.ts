import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { VirtualClock } from '@floe-rl/core';
import { runtimeSpecSchema } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { settle } from '../../../../../node/test/gateway/session-bench.ts';
import { BoxRuntime } from '../../../../src/backends/boxed/runtime.ts';
import { BoxSnapshot } from '../../../../src/backends/boxed/snapshot.ts';
import { BoxListener } from '../../../../src/box/connection.ts';
import { encodeFrame } from '../../../../src/box/frames.ts';
import type { BoxReply } from '../../../../src/box/messages.ts';
import { never } from '../../../backends/workbench.ts';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'floe-box-'));
});
afterEach(() => rm(dir, { recursive: true, force: true }));

function reply(server: Socket, message: BoxReply): void {
  for (const part of encodeFrame(message)) server.write(part);
}

/** A sandbox whose box server is simulated by the test. The end of the sandbox is recorded, and does not close the connection. */
async function sandbox() {
  const clock = new VirtualClock();
  const listener = await BoxListener.open(join(dir, 's'), { clock, maxBodyBytes: 1_000_000 });
  const server = connect(join(dir, 's'));
  server.resume();
  reply(server, { type: 'ready', environment: {}, user: null });
  const connection = await listener.accept(new Promise<never>(() => {}), never);
  let ends = 0;
  const runtime = new BoxRuntime({
    ...{ backend: 'docker', isolation: 'container', clock, connection, dir },
    request: { name: 's', spec: runtimeSpecSchema.parse({}), proxy: null, readOnlyMounts: [] },
    paths: { workdir: '/work', home: '/home', artifacts: '/artifacts', logs: '/logs' },
    ...{ proxyOrigin: '', mcpCommand: [], environment: {}, token: 't', cgroupDirectories: [], user: null },
    end: async () => void ends++,
    explainEnd: async () => ({ byAgent: true, killedBy: null }),
  });
  return { runtime, server, clock, ends: () => ends };
}

describe('a sandbox whose box server does not respond', () => {
  it.each([false, true])(
    'is ended when a command is aborted (which was reported as started: %s)',
    async (isStarted) => {
      const { runtime, server, clock, ends } = await sandbox();
      const aborted = new AbortController();
      const reason = new Error('too late');
      const running = runtime.exec({ command: 'kill -STOP "$PPID"' }, aborted.signal);
      const rejected = expect(running).rejects.toBe(reason);
      await new Promise((resolve) => server.once('data', resolve));
      reply(server, { type: 'file_done', id: 1 });
      await new Promise((resolve) => server.once('data', resolve));
      if (isStarted) reply(server, { type: 'started', id: 1, pid: 7 });
      await settle();
      aborted.abort(reason);
      await settle();
      clock.advance(3_000);
      await rejected;
      expect(ends()).toBe(1);
    },
  );

  it('is kept when the end of an aborted command has arrived and the timer is late', async () => {
    const { runtime, server, clock, ends } = await sandbox();
    const aborted = new AbortController();
    const reason = new Error('too late');
    const rejected = expect(runtime.exec({ command: 'true' }, aborted.signal)).rejects.toBe(reason);
    const request = () => new Promise((resolve) => server.once('data', resolve));
    await request();
    reply(server, { type: 'file_done', id: 1 });
    await request();
    reply(server, { type: 'started', id: 1, pid: 7 });
    await settle();
    aborted.abort(reason);
    await request();
    const result = { exitCode: null, signal: 'SIGKILL', droppedBytes: 0, killedBy: null } as const;
    reply(server, { type: 'done', id: 1, result, stdoutBytes: 0 });
    // The message is in the socket, but the event loop has not read it yet.
    clock.advance(3_000);
    await rejected;
    expect(ends()).toBe(0);
  });

  it.each<[string, (runtime: BoxRuntime, signal: AbortSignal) => Promise<unknown>]>([
    ['an upload', (runtime, signal) => runtime.uploadDir(dir, '.', signal)],
    ['a snapshot', (runtime, signal) => runtime.snapshot(signal)],
    ['a file', (runtime, signal) => runtime.writeFiles([{ path: 'a', content: 'b' }], signal)],
  ])('lets %s be aborted', async (_what, work) => {
    const { runtime } = await sandbox();
    const aborted = new AbortController();
    const reason = new Error('too late');
    const rejected = expect(work(runtime, aborted.signal)).rejects.toMatchObject({ message: 'too late' });
    await settle();
    aborted.abort(reason);
    await rejected;
  });

  it('lets a restore be aborted, and runs the next command then', async () => {
    const { runtime, server } = await sandbox();
    await writeFile(join(dir, 'archive'), 'files');
    const aborted = new AbortController();
    const reason = new Error('too late');
    const snapshot = new BoxSnapshot('docker', 's', 5, join(dir, 'archive'));
    const rejected = expect(runtime.restore(snapshot, aborted.signal)).rejects.toBe(reason);
    await settle();
    aborted.abort(reason);
    await rejected;
    const read = runtime.readFile('a', 1, never);
    reply(server, { type: 'file_absent', id: 2 });
    expect(await read).toBe(null);
  });
});
