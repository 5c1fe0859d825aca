import { spawnSync } from 'node:child_process';
import { describe, expect, it } from 'vitest';
import { CLI } from '../../commands/machine.ts';

describe('floe engines add --adaptive-concurrency', () => {
  it.each(['4', 'x-8', '-4', '4-'])('refuses %j before it calls the server', (bounds) => {
    const args = ['engines', 'add', 'http://127.0.0.1:1', '--url', 'http://127.0.0.1:2'];
    const { status, stderr } = spawnSync(process.execPath, [CLI, ...args, `--adaptive-concurrency=${bounds}`], {
      encoding: 'utf8',
      env: { ...process.env, FLOE_TOKEN: 'x' },
    });
    expect(stderr).toContain(`--adaptive-concurrency: ${bounds} is not two integers such as 4-512`);
    expect(status).toBe(2);
  });
});
