import { existsSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeError, VirtualClock } from '@floe-rl/core';
import { runtimeSpecSchema } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { type Boxed, startBoxed } from '../../../../src/backends/boxed/start.ts';
import { encodeFrame, type Frame, FrameReader } from '../../../../src/box/frames.ts';
import type { BoxReply } from '../../../../src/box/messages.ts';
import { never } from '../../../backends/workbench.ts';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'floe-box-'));
});
afterEach(() => rm(dir, { recursive: true, force: true }));

/** Simulates a box server that answers every request, and reports a variable and no user. */
function playBoxServer(): void {
  const socket = connect(join(dir, 'box.sock'));
  const send = (message: BoxReply): void => {
    for (const part of encodeFrame(message)) socket.write(part);
  };
  const answer = ({ header }: Frame): void => send({ type: 'file_done', id: (header as { id: number }).id });
  const reader = new FrameReader({ headerBytes: 1_000_000, bodyBytes: 1_000_000 }, answer);
  socket.on('data', (chunk: Buffer) => reader.push(chunk));
  send({ type: 'ready', environment: { FROM_IMAGE: 'yes' }, user: null });
}

/** Starts a sandbox of a back end that the test simulates. `overrides` replaces parts of the back end. */
function start(overrides: Partial<Boxed<string>> = {}, signal = never) {
  const removed: (readonly [id: string, isConnected: boolean])[] = [];
  const boxed: Boxed<string> = {
    ...{
      backend: 'docker',
      isolation: 'container',
      socketDir: dir,
      proxyOrigin: '',
      user: null,
      cgroupDirectories: [],
    },
    imageVariables: (reported) => reported,
    create: async () => {
      playBoxServer();
      return 'one';
    },
    failure: () => new Promise<never>(() => {}),
    explainEnd: async () => ({ byAgent: true, killedBy: null }),
    remove: async (id, connection) => void removed.push([id, connection !== null]),
    ...overrides,
  };
  const request = { name: 's', spec: runtimeSpecSchema.parse({}), proxy: null, readOnlyMounts: [] };
  const shared = { dir: '/programs', paths: { box: 'box.js', mcp: 'mcp.js', browser: 'browser.js' }, loader: null };
  return { started: startBoxed({ clock: new VirtualClock(), dir, request, shared }, boxed, signal), removed };
}

describe('a sandbox with a box server', () => {
  it('is removed with its directory when it is stopped', async () => {
    const { started, removed } = start();
    const runtime = await started;
    expect([runtime.backend, runtime.paths.workdir, runtime.mcpCommand.at(-1)]).toEqual([
      'docker',
      runtimeSpecSchema.parse({}).workdir,
      '/.floe/programs/mcp.js',
    ]);
    expect(removed).toEqual([]);
    await runtime.stop();
    expect(removed).toEqual([['one', true]]);
    expect(existsSync(dir)).toBe(false);
  });

  it('is removed when it ends while it starts, and its start rejects with the reason', async () => {
    const ended = new FloeError('runtime_failed', 'ended with code 1');
    const { started, removed } = start({ create: async () => 'one', failure: () => Promise.reject(ended) });
    await expect(started).rejects.toBe(ended);
    expect(removed).toEqual([['one', false]]);
  });

  it('is removed when its image lacks the user of the task', async () => {
    const { started, removed } = start({ user: 'nemo' });
    await expect(started).rejects.toMatchObject({
      code: 'schema_violation',
      message: 'runtime.user: the image has no user nemo',
    });
    expect(removed).toEqual([['one', false]]);
  });

  it('is removed when its start is aborted, and nothing waits for its end any more', async () => {
    const aborted = new AbortController();
    const reason = new FloeError('cancelled', 'enough');
    const waits: AbortSignal[] = [];
    const { started, removed } = start(
      {
        create: async () => 'one',
        failure: (_id, signal) => {
          waits.push(signal);
          aborted.abort(reason);
          return new Promise<never>(() => {});
        },
      },
      aborted.signal,
    );
    await expect(started).rejects.toBe(reason);
    expect(removed).toEqual([['one', false]]);
    expect(waits.map((signal) => signal.aborted)).toEqual([true]);
  });

  it('is not removed when it could not be created', async () => {
    const { started, removed } = start({ create: () => Promise.reject(new Error('no room')) });
    await expect(started).rejects.toThrow('no room');
    expect(removed).toEqual([]);
    expect(existsSync(join(dir, 'box.sock'))).toBe(false);
  });
});
