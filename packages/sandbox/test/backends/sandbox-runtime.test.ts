import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeError, VirtualClock } from '@floe-rl/core';
import { runtimeSpecSchema } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { ExecResult, StartRequest } from '../../src/api/runtime.ts';
import { LocalRuntime } from '../../src/backends/local.ts';
import { reportKill } from '../../src/backends/sandbox-runtime.ts';
import type { SpawnResult } from '../../src/spawn/spawner.ts';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'floe-kill-'));
});
afterEach(() => rm(dir, { recursive: true, force: true }));

it.each([
  [
    'the reason of its abort',
    new FloeError('deadline_exceeded', 'agent took longer than 10 s', { stage: 'agent' }),
    'deadline_exceeded',
  ],
  ['runtime_failed for a reason without a code', new Error('enough'), 'runtime_failed'],
])('a command that does not end after SIGKILL is rejected with %s', async (_, reason, code) => {
  const clock = new VirtualClock();
  let kills = 0;
  let spawned = (): void => {};
  const begun = new Promise<void>((resolve) => {
    spawned = resolve;
  });
  const runtime = new LocalRuntime({
    spawner: {
      spawn: async () => {
        spawned();
        return {
          pid: 1,
          done: new Promise<SpawnResult>(() => {}),
          firstLine: Promise.resolve(null),
          kill: () => kills++,
        };
      },
      close: async () => {},
    },
    clock,
    owner: { id: 'owner', instance: 'me' },
    cgroups: null,
    dir,
    request: { name: 'ses_1-1-agent', spec: runtimeSpecSchema.parse({}), proxy: null, readOnlyMounts: [] },
    token: 'token',
  });
  const stop = new AbortController();
  const ended = runtime.exec({ command: 'cat /net/away', cwd: dir }, stop.signal).catch((error: unknown) => error);
  await begun;
  await new Promise((resolve) => setImmediate(resolve));
  stop.abort(reason);
  clock.advance(9_000);
  expect(await Promise.race([ended, new Promise((resolve) => setImmediate(() => resolve('waits')))])).toBe('waits');
  clock.advance(2_000);
  expect(await ended).toMatchObject({ code, details: { unkillable: true } });
  expect(kills).toBeGreaterThan(0);
  await runtime.stop();
});

function reportedReasons(killedBy: ExecResult['killedBy'], reason?: FloeError): string[] {
  const reasons: string[] = [];
  const onKill: StartRequest['onKill'] = (why) => reasons.push(why);
  const signal = reason === undefined ? new AbortController().signal : AbortSignal.abort(reason);
  reportKill({ onKill }, killedBy, signal);
  return reasons;
}

describe('reportKill', () => {
  it('reports the exceeded limit even when the deadline has passed too', () => {
    const deadline = new FloeError('deadline_exceeded', 'too late');
    expect(reportedReasons('memory')).toEqual(['memory']);
    expect(reportedReasons('processes', deadline)).toEqual(['processes']);
  });

  it('distinguishes a deadline from a stop', () => {
    expect(reportedReasons(null, new FloeError('deadline_exceeded', 'too late'))).toEqual(['deadline']);
    expect(reportedReasons(null, new FloeError('cancelled', 'no more'))).toEqual(['stopped']);
  });

  it('reports nothing for a command that ended by itself', () => {
    expect(reportedReasons(null)).toEqual([]);
  });
});
