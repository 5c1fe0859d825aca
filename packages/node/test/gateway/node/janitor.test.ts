import { randomBytes } from 'node:crypto';
import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import { systemClock, VirtualClock } from '@floe-rl/core';
import { silentLogger } from '@floe-rl/observe';
import { createSpawner, labelledProcesses } from '@floe-rl/sandbox';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Owner } from '../../../../sandbox/src/processes/owner.ts';
import { labelled, type SpawnedProcess, type Spawner } from '../../../../sandbox/src/spawn/spawner.ts';
import { Janitor } from '../../../src/gateway/node/janitor.ts';
import { openStateDir } from '../../../src/gateway/recovery/state-dir.ts';

let dir: string;
let spawner: Spawner;
const owner: Owner = { id: randomBytes(8).toString('hex'), instance: 'me' };
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'floe-janitor-'));
  spawner = await createSpawner();
});
afterEach(async () => {
  await spawner.close();
  await rm(dir, { recursive: true, force: true });
});

/** Starts a process with the label of the sandbox `name`, and creates the directory of the sandbox. */
async function sandbox(name: string, by = owner): Promise<SpawnedProcess> {
  await mkdir(join(dir, 'sessions', 'local-1', name, 'work'), { recursive: true });
  const argv = ['/bin/sh', '-c', 'trap "" TERM; echo up; while :; do sleep 600; done'];
  const child = await labelled(spawner, by, name).spawn({ argv, env: { PATH: '/usr/bin:/bin' }, maxOutputBytes: 100 });
  await child.firstLine;
  return child;
}

describe('Janitor', () => {
  it('ends only sandboxes that have been without an attempt for a minute', async () => {
    const clock = new VirtualClock();
    const other: Owner = { id: randomBytes(8).toString('hex'), instance: 'me' };
    const idle = await sandbox('ses_idle-1-agent');
    await sandbox('ses_live-1-agent');
    await sandbox('ses_else-1-agent', other);
    let leaked = 0;
    const janitor = new Janitor({
      clock: {
        ...clock,
        monotonicMs: () => clock.monotonicMs(),
        schedule: systemClock.schedule,
        nowMs: systemClock.nowMs,
      },
      log: silentLogger,
      owner,
      sessionsDir: join(dir, 'sessions'),
      expectedNames: () => new Set(['ses_live-1-agent', 'ses_else-1-agent']),
      onLeaked: (count) => {
        leaked += count;
      },
    });
    await janitor.sweep();
    clock.advance(30_000);
    await janitor.sweep();
    expect(leaked).toBe(0);
    clock.advance(31_000);
    await janitor.sweep();
    expect(leaked).toBe(1);
    expect((await idle.done).signal).toBe('SIGKILL');
    expect((await readdir(join(dir, 'sessions', 'local-1'))).sort()).toEqual(['ses_else-1-agent', 'ses_live-1-agent']);
    expect((await labelledProcesses(owner.id)).map(({ label }) => label.name)).toContain('ses_live-1-agent');
    expect(await labelledProcesses(other.id)).not.toEqual([]);
    await janitor.close();
  });
});

describe('openStateDir', () => {
  it('keeps the owner id and removes what an earlier process left', async () => {
    const stateDir = join(dir, 'state');
    const first = await openStateDir(stateDir, systemClock);
    expect(first.reaped).toMatchObject({ processes: 0, directories: 0, sockets: 0 });
    const dead = { id: first.ownerId, instance: 'dead' };
    const left = await sandbox('ses_1-1-agent', dead);
    const other = await sandbox('ses_2-1-agent', owner);
    await mkdir(join(first.sessions, 'local-77', 'ses_1-1-agent'), { recursive: true });
    await writeFile(join(first.sockets, 'x.sock'), '');
    // The lock of a process that no longer exists replaces the gateway's lock, to simulate a gateway that was killed.
    await writeFile(join(stateDir, 'gateway.lock'), `999999999 1 earlier-boot ${hostname()}`);
    const second = await openStateDir(stateDir, systemClock);
    expect(second.ownerId).toBe(first.ownerId);
    expect(second.reaped).toMatchObject({ cgroups: 0, mounts: 0, directories: 1, sockets: 1, survivors: [] });
    expect(second.reaped.processes).toBeGreaterThan(0);
    await left.done;
    expect([await readdir(second.sessions), await readdir(second.sockets)]).toEqual([[], []]);
    expect(await labelledProcesses(owner.id)).not.toEqual([]);
    other.kill();
    await second.release();
    const elsewhere = await openStateDir(join(dir, 'other'), systemClock);
    expect(elsewhere.ownerId).not.toBe(first.ownerId);
    await elsewhere.release();
  });
});
