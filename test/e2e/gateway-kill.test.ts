import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { chooseBackend } from '../../src/cli/backend.ts';
import { startServer } from '../../src/cli/stack.ts';
import { FloeClient } from '../../src/client/index.ts';
import { silentLogger } from '../../src/observe/log.ts';
import { type SimServer, startSim } from '../../src/sim/index.ts';
import { processesOf } from './processes.ts';
import { oneCall } from './stack.ts';

const choice = await chooseBackend();
const backends = choice.problem === null ? (['bubblewrap', 'local'] as const) : (['local'] as const);
const CLI = join(import.meta.dirname, '..', '..', 'dist', 'cli', 'main.js');

describe.each(backends)('kill -9 of a gateway with %s sandboxes', (backend) => {
  let dir: string;
  let sim: SimServer;
  let server: Awaited<ReturnType<typeof startServer>>;
  let client: FloeClient;
  const children: ChildProcess[] = [];

  beforeAll(async () => {
    dir = await mkdtemp(join(tmpdir(), 'floe-kill-'));
    sim = await startSim();
    server = await startServer(
      join(dir, 'server'),
      { port: 0, lease_seconds: 1.5, sweep_seconds: 0.2, retry_backoff_seconds: 0.1 },
      silentLogger,
    );
    client = new FloeClient({ url: server.url });
  });
  afterAll(async () => {
    for (const child of children) child.kill('SIGTERM');
    await Promise.all(
      children.map((child) => (child.exitCode === null && child.signalCode === null ? once(child, 'exit') : null)),
    );
    await client.close();
    await server.close();
    await sim.close();
    await rm(dir, { recursive: true, force: true });
  });

  async function startGateway(nodeId: string): Promise<ChildProcess> {
    const args = [
      'gateway',
      '--json',
      '--server',
      server.url,
      '--engine',
      sim.url,
      '--backend',
      backend,
      '--node-id',
      nodeId,
    ];
    const child = spawn(
      process.execPath,
      [CLI, ...args, '--state-dir', join(dir, 'gateway'), '--log-level', 'silent'],
      {
        stdio: ['ignore', 'pipe', 'inherit'],
        env: { ...process.env, FLOE_HOME: join(dir, 'home') },
      },
    );
    children.push(child);
    await once(createInterface({ input: child.stdout as NodeJS.ReadableStream }), 'line');
    return child;
  }

  it('leaves no process of the sandbox, and the session is done by the next gateway', { timeout: 90_000 }, async () => {
    const marker = `floe-test-kill-${backend}`;
    const first = await startGateway('first');
    // The first attempt hangs after its call; later ones end.
    const script = `${oneCall('hello')}; [ "$FLOE_ATTEMPT" = 1 ] && FLOE_MARK=${marker} setsid sleep 600; true`;
    const { session_ids } = await client.submit({
      instruction: 'Wait.',
      agent: { harness: 'shell', custom_shell: script },
      evaluator: { strategy: 'session_completed' },
    });
    const view = () => client.session(session_ids[0] as string);
    await expect.poll(async () => (await view()).turns, { timeout: 20_000, interval: 20 }).toBe(1);
    await expect.poll(() => processesOf(marker).length, { timeout: 10_000, interval: 20 }).toBeGreaterThan(0);

    first.kill('SIGKILL');
    await once(first, 'exit');
    await expect.poll(() => processesOf(marker), { timeout: 10_000, interval: 20 }).toEqual([]);

    await startGateway('second');
    for await (const result of client.results()) {
      expect(result).toMatchObject({
        session_id: session_ids[0],
        outcome: 'completed',
        reward: 1,
        attempt: 2,
        node_id: 'second',
      });
      break;
    }
  });
});
