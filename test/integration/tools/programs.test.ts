import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../../tools/repository.ts';

/**
 * Runs the compiled `main` program as `npm run verify -- ARGUMENTS` or `npm run bench -- ARGUMENTS` does. Returns its exit status and
 * output.
 */
function run(main: string, ...args: string[]): { status: number | null; stdout: string; stderr: string } {
  const path = join(repositoryRoot(), '.build', main);
  const { status, stdout, stderr } = spawnSync(process.execPath, [path, ...args], { encoding: 'utf8' });
  return { status, stdout, stderr };
}

describe.each([
  ['verify/main.js', 'verify', ['golden', 'fidelity', 'simulate', 'faults', 'matrix']],
  ['bench/main.js', 'bench', ['proxy', 'builder', 'sessions']],
] as const)('%s', (main, command, names) => {
  it('lists every program when no name is given', () => {
    const { status, stdout } = run(main);
    expect(status).toBe(0);
    expect(stdout).toContain(`usage: npm run ${command} -- NAME`);
    for (const name of names) expect(stdout).toMatch(new RegExp(`^ {2,4}${name} +\\S`, 'm'));
  });

  it.each(['nothing', 'toString', '__proto__'])(
    'refuses the unknown name %s in one line that has all names',
    (unknown) => {
      const { status, stdout, stderr } = run(main, unknown, '--json');
      expect(status).toBe(2);
      expect(stdout).toBe('');
      expect(stderr).toContain(`there is no "${unknown}"`);
      expect(stderr.trimEnd().split('\n')).toHaveLength(1);
      for (const name of names) expect(stderr).toMatch(new RegExp(`[ ,]${name}(,|$)`, 'm'));
    },
  );
});

it.each([
  ['lists', '--sessions', '1e3'],
  ['dapo', '--seed', 'x'],
])('the bench %s refuses a wrong value of %s in one line', (name, option, value) => {
  const { status, stdout, stderr } = run('bench/main.js', name, option, value);
  expect(status).toBe(2);
  expect(stdout).toBe('');
  expect(stderr).toBe(`${option} must be a whole number of at least 1, but is "${value}"\n`);
});
