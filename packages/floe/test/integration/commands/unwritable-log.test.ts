import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { describe, expect, it } from 'vitest';
import { CLI } from '../../commands/machine.ts';

describe('floe up', () => {
  it('keeps serving when its log and messages cannot be written, and ends with 0', { timeout: 240_000 }, async () => {
    const home = await mkdtemp(join(tmpdir(), 'floe-log-'));
    const argv = [process.execPath, CLI, 'up', '--port', '0', '--backend', 'local', '--json', '--log-level', 'trace'];
    const env = { ...process.env, FLOE_HOME: home, FLOE_TOKEN: '' };
    const child = spawn('sh', ['-c', 'exec "$@" 2>/dev/full', 'sh', ...argv], {
      env,
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    const exited = once(child, 'exit');
    const [line] = await Promise.race([
      once(createInterface({ input: child.stdout }), 'line'),
      exited.then(() => ['{}']),
    ]);
    try {
      const { server } = JSON.parse(line);
      expect(server).toMatch(/^http/);
      expect((await fetch(`${server}/health`)).status).toBe(200);
      child.kill('SIGTERM');
      expect((await exited)[0]).toBe(0);
    } finally {
      child.kill('SIGKILL');
      await rm(home, { recursive: true, force: true });
    }
  });
});
