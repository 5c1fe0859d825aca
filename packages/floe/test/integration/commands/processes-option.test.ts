import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { CLI } from '../../commands/machine.ts';

const home = mkdtempSync(join(tmpdir(), 'floe-processes-'));
afterAll(() => rmSync(home, { recursive: true }));

/** Runs `floe gateway` with options that it must refuse. */
function gateway(...options: readonly string[]): { status: number | null; output: string } {
  const args = ['gateway', '--backend', 'local', '--server', 'http://127.0.0.1:1', ...options];
  const env = { ...process.env, FLOE_HOME: home, FLOE_TOKEN: 'x' };
  const { status, stdout, stderr } = spawnSync(process.execPath, [CLI, ...args], { env, encoding: 'utf8' });
  return { status, output: stdout + stderr };
}

describe('floe gateway --processes', () => {
  it.each(['0', '-1', 'x', '1.5', ''])('refuses %j', (value) => {
    const { status, output } = gateway(`--processes=${value}`);
    expect(output).toContain(`--processes: ${value} is not an integer of at least 1`);
    expect(status).toBe(2);
  });

  it('refuses more processes than RUN workers, and warns of more than the machine has cores', () => {
    const { status, output } = gateway('--processes', '250', '--init', '250', '--postrun', '250', '--run', '249');
    expect(output).toContain('more processes than the machine has cores');
    expect(output).toContain('250 processes need pools.run (--run) of at least 250, which is 249');
    expect(status).toBe(2);
  });

  it('refuses more processes than a node can have', () => {
    const { status, output } = gateway('--processes', '257');
    expect(output).toContain('processes');
    expect(status).toBe(2);
  });
});
