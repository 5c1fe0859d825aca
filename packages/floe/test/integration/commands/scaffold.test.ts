import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { taskRequestSchema } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../../../../tools/repository.ts';
import { configFileSchema } from '../../../src/commands/config-file.ts';
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
