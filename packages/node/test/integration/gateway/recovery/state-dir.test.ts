import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { chmod, mkdir, mkdtemp, readdir, readFile, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { removeTree, systemClock } from '@floe-rl/core';
import { labelOf } from '@floe-rl/sandbox';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { openStateDir, removeStateDir } from '../../../../src/gateway/recovery/state-dir.ts';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'floe-state-'));
});
afterEach(async () => {
  vi.unstubAllEnvs();
  await removeTree(dir);
});

/** Creates read-only directories as in a session that has used Go's module cache. */
async function readOnlySession(): Promise<void> {
  const cache = join(dir, 'sessions', 'local', 'ses_1-1-agent', 'home', 'go', 'pkg');
  await mkdir(cache, { recursive: true });
  await writeFile(join(cache, 'module.go'), '', { mode: 0o444 });
  await chmod(cache, 0o555);
}

describe('openStateDir', () => {
  // This test proves nothing when it runs as root, because root can remove everything. unprivileged.long.test.ts runs it as another user.
  it('removes the read-only directories of agents, at the start and at release', async () => {
    await (await openStateDir(dir, systemClock)).release();
    await readOnlySession();
    const first = await openStateDir(dir, systemClock);
    expect([first.reaped.directories, await readdir(join(dir, 'sessions'))]).toEqual([1, []]);
    await readOnlySession();
    await first.release();
    expect(await readdir(dir)).not.toContain('sessions');
    await (await openStateDir(dir, systemClock)).release();
  });

  it('releases the lock even when a session directory cannot be removed', async () => {
    const state = await openStateDir(dir, systemClock);
    // The path of the innermost directory is longer than the system allows, so that not even root can remove the tree by path.
    const half = Array.from({ length: 15 }, () => 'd'.repeat(200));
    const [one, two] = [join(state.sessions, ...half), join(state.sessions, 'two')];
    for (const deep of [one, join(two, ...half)]) await mkdir(deep, { recursive: true });
    await rename(two, join(one, 'two'));
    await expect(state.release()).rejects.toMatchObject({ code: 'ENAMETOOLONG' });
    expect(await readdir(dir)).not.toContain('gateway.lock');
    execFileSync('rm', ['-rf', state.sessions]);
  });

  it('refuses a directory whose sessions contain a mount that cannot be removed', async () => {
    await (await openStateDir(dir, systemClock)).release();
    // /proc is always a mount. The first `umount` in PATH fails, so the test does not unmount it.
    await symlink('/proc', join(dir, 'sessions'));
    const commands = join(dir, 'commands');
    await mkdir(commands);
    await writeFile(join(commands, 'umount'), '#!/bin/sh\nexit 32\n', { mode: 0o755 });
    vi.stubEnv('PATH', `${commands}:${process.env.PATH}`);
    await expect(openStateDir(dir, systemClock)).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringMatching(/^an earlier gateway process left \/proc\S* mounted; unmount it and restart$/),
    });
  });

  it('writes its format into a new directory and accepts it later', async () => {
    await mkdir(join(dir, 'lost+found'));
    await (await openStateDir(dir, systemClock)).release();
    expect(await readFile(join(dir, 'format'), 'utf8')).toBe('floe-gateway-1');
    await (await openStateDir(dir, systemClock)).release();
  });

  it.each([
    ['another format', 'floe-gateway-0', 'floe-gateway-0'],
    ['no format', null, 'none'],
  ])('refuses a directory with files of %s and changes nothing in it', async (_, format, found) => {
    await (await openStateDir(dir, systemClock)).release();
    await writeFile(join(dir, 'journal', 'capture-00000001.log'), 'old');
    await rm(join(dir, 'format'));
    if (format !== null) await writeFile(join(dir, 'format'), `${format}\n`);
    const before = await readdir(dir, { recursive: true });
    await expect(openStateDir(dir, systemClock)).rejects.toMatchObject({
      code: 'setup_failed',
      message:
        `the state directory ${dir} has the format ${found}, and this version of floe needs floe-gateway-1; ` +
        'move the directory away or use an empty one',
      details: { path: dir, found: format, expected: 'floe-gateway-1' },
    });
    expect(await readdir(dir, { recursive: true })).toEqual(before);
  });
});

describe('removeStateDir', () => {
  it('ends the processes that belong to the directory, and removes it', async () => {
    const state = await openStateDir(dir, systemClock);
    const label = labelOf({ id: state.ownerId, instance: 'dead' }, 'ses_1-1-agent');
    await state.release();
    const leftover = spawn('sleep', ['1000'], { env: { ...process.env, ...label }, stdio: 'ignore' });
    const exited = once(leftover, 'exit');
    await once(leftover, 'spawn');
    await removeStateDir(dir, systemClock);
    expect(await exited).toEqual([null, 'SIGKILL']);
    expect(existsSync(dir)).toBe(false);
  });

  it('does nothing when the directory does not exist', async () => {
    await removeStateDir(join(dir, 'absent'), systemClock);
    expect(existsSync(dir)).toBe(true);
  });
});
