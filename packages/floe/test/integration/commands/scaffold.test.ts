import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { taskRequestSchema } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../../../../tools/repository.ts';
import { configFileSchema } from '../../../src/commands/config-file.ts';
import { installedFrom } from '../../../src/commands/scaffold/installed-from.ts';
import { CLI } from '../../commands/machine.ts';

/** A folder in which the packages floe and zod are installed. */
function folder(): string {
  const dir = mkdtempSync(join(tmpdir(), 'floe-scaffold-'));
  mkdirSync(join(dir, 'node_modules'));
  symlinkSync(join(repositoryRoot(), 'packages', 'floe'), join(dir, 'node_modules', 'floe'));
  symlinkSync(join(repositoryRoot(), 'node_modules', 'zod'), join(dir, 'node_modules', 'zod'));
  return dir;
}

function run(cwd: string, ...args: string[]) {
  return spawnSync(process.execPath, args, { cwd, encoding: 'utf8' });
}

describe.each(['env', 'agent', 'tool', 'evaluator'])('floe %s init', (command) => {
  it('makes a folder whose test passes, with a task and a config file that are valid', { timeout: 120_000 }, () => {
    const dir = folder();
    const made = run(dir, CLI, command, 'init', 'my-own');
    expect(made.stderr).toBe('');
    expect(made.status).toBe(0);
    const path = join(dir, 'my-own');
    const { dependencies } = JSON.parse(readFileSync(join(path, 'package.json'), 'utf8'));
    expect(dependencies.floe).toBe(`file:${join(repositoryRoot(), 'packages', 'floe')}`);
    const tested = run(path, '--test');
    expect(tested.stdout).toMatch(/pass [1-9]/);
    expect(tested.stdout).toMatch(/fail 0/);
    expect(tested.status).toBe(0);
    expect(() => taskRequestSchema.parse(JSON.parse(readFileSync(join(path, 'task.json'), 'utf8')))).not.toThrow();
    const config = configFileSchema.parse(JSON.parse(readFileSync(join(path, 'floe.json'), 'utf8')));
    const modules = { ...config.node.evaluators, ...config.node.plugins.agents, ...config.node.plugins.environments };
    const [module] = Object.values({ ...modules, ...config.node.plugins.tools });
    expect(existsSync(join(path, String(module)))).toBe(true);
  });

  it('refuses a folder that exists and a name that tasks cannot use', () => {
    const dir = folder();
    expect(run(dir, CLI, command, 'init', 'node_modules').stderr).toContain(
      'there is already something at node_modules',
    );
    expect(run(dir, CLI, command, 'init', 'no spaces').stderr).toContain('schema_violation');
    expect(existsSync(join(dir, 'no spaces'))).toBe(false);
  });
});

describe('the dependency on floe of a new plug-in', () => {
  /** Returns the folder of a floe that npm has installed from `resolved`. */
  function installed(resolved: string): string {
    const modules = join(mkdtempSync(join(tmpdir(), 'floe-installed-')), 'node_modules');
    const path = join(modules, 'floe');
    mkdirSync(path, { recursive: true });
    writeFileSync(join(path, 'package.json'), JSON.stringify({ name: 'floe', version: '1.2.3' }));
    const packages = { 'node_modules/floe': { version: '1.2.3', resolved } };
    writeFileSync(join(modules, '.package-lock.json'), JSON.stringify({ lockfileVersion: 3, packages }));
    return path;
  }

  it('is the exact version of a floe that was installed from a registry', () => {
    expect(installedFrom(installed('https://registry.example/npm/floe/-/floe-1.2.3.tgz'))).toBe('1.2.3');
  });

  it('is the folder of a floe that was installed from a file', () => {
    for (const resolved of ['file:../floe-1.2.3.tgz', 'https://example.org/floe-1.2.3.tgz']) {
      const path = installed(resolved);
      expect(installedFrom(path)).toBe(`file:${path}`);
    }
  });
});
