import { execFileSync } from 'node:child_process';
import { chmod, mkdir, mkdtemp, readdir, rename, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { systemClock } from '../../../src/core/clock.ts';
import { removeTree } from '../../../src/core/remove-tree.ts';
import { takeStateDir } from '../../../src/gateway/recovery/state-dir.ts';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'floe-state-'));
});
afterEach(() => removeTree(dir));

/** What an agent that built something with Go leaves. */
async function readOnlySession(): Promise<void> {
  const cache = join(dir, 'sessions', 'local', 'ses_1-1-agent', 'home', 'go', 'pkg');
  await mkdir(cache, { recursive: true });
  await writeFile(join(cache, 'module.go'), '', { mode: 0o444 });
  await chmod(cache, 0o555);
}

describe('a state directory', () => {
  // Root may do everything: the unprivileged run of these tests is the one that counts.
  it('can be taken and released with read-only directories of agents in it', async () => {
    await readOnlySession();
    const first = await takeStateDir(dir, systemClock);
    expect([first.reaped.directories, await readdir(join(dir, 'sessions'))]).toEqual([1, []]);
    await readOnlySession();
    await first.release();
    expect(await readdir(dir)).not.toContain('sessions');
    await (await takeStateDir(dir, systemClock)).release();
  });

  it('is let go of also when something in it cannot be removed', async () => {
    const state = await takeStateDir(dir, systemClock);
    // Deeper than any path may be, so that not even root removes it by its names.
    const half = Array.from({ length: 15 }, () => 'd'.repeat(200));
    const [one, two] = [join(state.sessions, ...half), join(state.sessions, 'two')];
    for (const deep of [one, join(two, ...half)]) await mkdir(deep, { recursive: true });
    await rename(two, join(one, 'two'));
    await expect(state.release()).rejects.toMatchObject({ code: 'ENAMETOOLONG' });
    expect(await readdir(dir)).not.toContain('gateway.lock');
    execFileSync('rm', ['-rf', state.sessions]);
  });
});
