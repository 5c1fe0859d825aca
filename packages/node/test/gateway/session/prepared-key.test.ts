import {
  chmodSync,
  cpSync,
  mkdirSync,
  mkdtempSync,
  renameSync,
  rmSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type PrepareAction, type RuntimeSpec, runtimeSpecSchema } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { PreparedKeys } from '../../../src/gateway/session/prepared-key.ts';

const spec = runtimeSpecSchema.parse({});
let root: string;
let keys: PreparedKeys;

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'floe-keys-'));
  keys = new PreparedKeys();
  mkdirSync(join(root, 'one', 'sub'), { recursive: true });
  writeFileSync(join(root, 'one', 'sub', 'file'), 'content');
  writeFileSync(join(root, 'one', 'run'), '#!/bin/sh', { mode: 0o755 });
  symlinkSync('run', join(root, 'one', 'link'));
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

function uploadOf(name: string, target = 'up'): PrepareAction[] {
  return [{ type: 'upload_dir', source: join(root, name), target }];
}

function keyOf(name: string, target?: string, of: RuntimeSpec = spec): Promise<string> {
  return keys.of('bubblewrap', of, uploadOf(name, target), [root]);
}

describe('the key of a preparation', () => {
  it('is the same for a copy of an uploaded directory at another path and of another time', async () => {
    cpSync(join(root, 'one'), join(root, 'two'), { recursive: true, verbatimSymlinks: true });
    utimesSync(join(root, 'two', 'run'), 1, 1);
    expect(await keyOf('two')).toBe(await keyOf('one'));
  });

  it.each<[string, () => void]>([
    ['the content of a file', () => writeFileSync(join(root, 'one', 'sub', 'file'), 'CONTENT')],
    ['the mode of a file', () => chmodSync(join(root, 'one', 'run'), 0o644)],
    ['the name of a file', () => renameSync(join(root, 'one', 'run'), join(root, 'one', 'ran'))],
    [
      'the target of a link',
      () => {
        rmSync(join(root, 'one', 'link'));
        symlinkSync('sub', join(root, 'one', 'link'));
      },
    ],
    ['the entries of a directory', () => mkdirSync(join(root, 'one', 'empty'))],
    [
      'the content of a file, whose time is set back',
      () => {
        writeFileSync(join(root, 'one', 'run'), '#!/bin/ls');
        utimesSync(join(root, 'one', 'run'), 1, 1);
      },
    ],
  ])('changes with %s', async (_what, change) => {
    utimesSync(join(root, 'one', 'run'), 1, 1);
    const before = await keyOf('one');
    expect(await keyOf('one')).toBe(before);
    change();
    expect(await keyOf('one')).not.toBe(before);
  });

  it('changes with the settings of the runtime, the target of an upload, and the back end', async () => {
    const others = [
      await keyOf('one', 'elsewhere'),
      await keyOf('one', 'up', { ...spec, memory_mb: spec.memory_mb + 1 }),
      await keys.of('local', spec, uploadOf('one'), [root]),
    ];
    expect(new Set([await keyOf('one'), ...others]).size).toBe(4);
  });

  it('is refused for an upload from outside of the upload roots', async () => {
    await expect(keys.of('bubblewrap', spec, uploadOf('one'), [])).rejects.toMatchObject({ code: 'source_forbidden' });
  });
});
