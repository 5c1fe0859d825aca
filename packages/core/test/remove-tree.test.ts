import { chmod, mkdir, mkdtemp, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { removeTree } from '../src/remove-tree.ts';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'floe-tree-'));
});
afterEach(() => rm(dir, { recursive: true, force: true }));

describe('removeTree', () => {
  // This test proves nothing when it runs as root, because root can remove everything. unprivileged.long.test.ts runs it as another user.
  it('removes folders that their owner may neither write to nor read, and does not follow links', async () => {
    const tree = join(dir, 'tree');
    const kept = join(dir, 'kept');
    await mkdir(join(tree, 'module', 'cache'), { recursive: true });
    await mkdir(kept, { mode: 0o500 });
    await writeFile(join(tree, 'module', 'cache', 'go.mod'), '', { mode: 0o444 });
    await symlink(kept, join(tree, 'module', 'link'));
    await chmod(join(tree, 'module', 'cache'), 0o000);
    await chmod(join(tree, 'module'), 0o555);
    await chmod(tree, 0o555);
    await removeTree(tree);
    await expect(stat(tree)).rejects.toMatchObject({ code: 'ENOENT' });
    expect((await stat(kept)).mode & 0o777).toBe(0o500);
    await removeTree(tree);
  });
});
