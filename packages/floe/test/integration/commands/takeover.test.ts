import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { NodeApi } from '@floe-rl/client';
import { newId, systemClock } from '@floe-rl/core';
import { expect, it } from 'vitest';

const METRICS = { init_inflight: 0, ready_depth: 0, run_inflight: 0, postrun_queue_depth: 0, postrun_inflight: 0 };
const CLI = join(import.meta.dirname, '..', '..', '..', 'dist', 'commands', 'main.js');

it('`floe up` ends with the reason when a newer process takes over its node id', { timeout: 240_000 }, async () => {
  const home = await mkdtemp(join(tmpdir(), 'floe-up-'));
  const args = ['up', '--json', '--port', '0', '--backend', 'local', '--node-id', 'n', '--log-level', 'silent'];
  const env = { ...process.env, FLOE_HOME: home, FLOE_TOKEN: '' };
  const child = spawn(process.execPath, [CLI, ...args], { env, stdio: ['ignore', 'pipe', 'ignore'] });
  const exited = once(child, 'exit');
  try {
    const lines = createInterface({ input: child.stdout });
    const [line] = await once(lines, 'line');
    const last = once(lines, 'line');
    const newer = new NodeApi({
      url: JSON.parse(line).server,
      token: (await readFile(join(home, 'control-token'), 'utf8')).trim(),
      nodeId: 'n',
      instance: newId('proc', systemClock),
      clock: systemClock,
    });
    const workers = { max_init_workers: 1, ready_size: 1, max_run_workers: 1, max_postrun_workers: 1, memory_mb: null };
    await newer.register({ host: null, dispatch_policy: 'pipeline', gateway_url: null, ...workers });
    await newer.heartbeat({ metrics: METRICS, refuses: null, sessions: [], engines: null, wait_seconds: 0 });
    await newer.close();
    expect((await exited)[0]).toBeGreaterThan(0);
    expect(JSON.parse((await last)[0])).toMatchObject({
      error: { code: 'setup_failed', message: expect.stringContaining('give each its own node id') },
    });
  } finally {
    child.kill('SIGKILL');
    await rm(home, { recursive: true, force: true });
  }
});
