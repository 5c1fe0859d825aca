import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

const TOOL = join(import.meta.dirname, '..', '..', 'tools', 'lint-structure.mjs');

describe('lint-structure', () => {
  let root: string;
  beforeEach(() => {
    root = mkdtempSync(join(tmpdir(), 'floe-lint-'));
    mkdirSync(join(root, 'tools'));
    cpSync(TOOL, join(root, 'tools', 'lint-structure.mjs'));
  });
  afterEach(() => rmSync(root, { recursive: true, force: true }));

  function lint(files: Record<string, string>): { status: number | null; stderr: string } {
    for (const [name, content] of Object.entries(files)) {
      mkdirSync(dirname(join(root, 'src', name)), { recursive: true });
      writeFileSync(join(root, 'src', name), content);
    }
    return spawnSync(process.execPath, [join(root, 'tools', 'lint-structure.mjs')], { encoding: 'utf8' });
  }

  it('accepts an import that the table allows', () => {
    expect(lint({ 'core/ids.ts': "import { idSchema } from '../schema/index.ts';\n" }).status).toBe(0);
  });

  it.each([
    [
      'an import against the table',
      { 'core/a.ts': "import { b } from '../proxy/b.ts';\n" },
      'core may not import proxy/b.ts',
    ],
    [
      'an evaluator that imports more than the runtime interface',
      { 'evaluators/a.ts': "import { x } from '../runtimes/local.ts';\n" },
      'may not import',
    ],
    ['a file of more than 600 lines', { 'core/long.ts': 'x;\n'.repeat(601) }, 'more than 600'],
    ['a timer outside the clock', { 'core/a.ts': 'setTimeout(() => {}, 5);\n' }, 'take a Clock'],
    ['a room that is not in the table', { 'attic/a.ts': '\n' }, 'not in the import table'],
    ['a file named for nothing', { 'core/utils.ts': '\n' }, 'named for the noun'],
  ])('refuses %s', (_, files, message) => {
    const { status, stderr } = lint(files as Record<string, string>);
    expect(status).toBe(1);
    expect(stderr).toContain(message);
  });
});
