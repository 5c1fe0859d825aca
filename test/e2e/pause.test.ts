import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type RunningServer, startServer } from '../../src/cli/stack.ts';
import { FloeClient } from '../../src/client/index.ts';
import { silentLogger } from '../../src/observe/log.ts';
import { type SimServer, startSim } from '../../src/sim/index.ts';
import { attemptsOf, conversation, type GatewayProcess, leftOf, startGatewayProcess } from './gateway-process.ts';
import { processesOf } from './processes.ts';

const POLL = { timeout: 20_000, interval: 20 };
const LONG = { timeout: 90_000 };

describe('a node', () => {
  let dir: string;
  let sim: SimServer;
  let server: RunningServer;
  let client: FloeClient;
  const gateways: GatewayProcess[] = [];

  beforeAll(async () => {
    dir = await mkdtemp(join(tmpdir(), 'floe-pause-'));
    sim = await startSim();
    const times = { sweep_seconds: 0.2, retry_backoff_seconds: 0.1, avoid_node_seconds: 0, lease_seconds: 3 };
    server = await startServer(join(dir, 'server'), { port: 0, ...times }, silentLogger);
    client = new FloeClient({ url: server.url });
  });
  afterAll(async () => {
    await Promise.all(gateways.map((gateway) => gateway.end('SIGKILL')));
    await client.close();
    await server.close();
    await sim.close();
    await rm(dir, { recursive: true, force: true });
  });

  async function start(nodeId: string, stateDir = nodeId, more: string[] = []): Promise<GatewayProcess> {
    const gateway = await startGatewayProcess({
      server: server.url,
      engine: sim.url,
      backend: 'local',
      nodeId,
      stateDir: join(dir, stateDir),
      more,
    });
    gateways.push(gateway);
    return gateway;
  }

  /** A session whose first attempt calls its model for ever, and is at its second turn when this resolves. */
  async function running(marker: string): Promise<string> {
    const endless = `export FLOE_MARK=${marker}; ${conversation(10_000)}`;
    const { session_ids } = await client.submit({
      instruction: 'Talk.',
      agent: { harness: 'shell', custom_shell: `[ "$FLOE_ATTEMPT" = 1 ] && { ${endless}; }; ${conversation(1)}` },
      evaluator: { strategy: 'session_completed' },
    });
    const [session] = session_ids;
    await expect.poll(async () => (await client.session(session as string)).turns, POLL).toBeGreaterThanOrEqual(2);
    return session as string;
  }

  async function resultOf(session: string) {
    for await (const result of client.results()) if (result.session_id === session) return result;
    throw new Error('the results ended');
  }

  it('that is stopped for longer than its lease asks no engine and delivers nothing when it wakes', LONG, async () => {
    const marker = 'floe-test-pause';
    const first = await start('first');
    const session = await running(marker);
    first.child.kill('SIGSTOP');
    const second = await start('second');
    // The server may have given the stopped node the second attempt too, in answer to a request from before.
    expect(await resultOf(session)).toMatchObject({ outcome: 'completed', node_id: 'second' });
    // Its agent was not stopped, and waits with a call for the moment when the proxy wakes.
    expect(processesOf(`FLOE_MARK=${marker}`)).not.toEqual([]);
    const asked = sim.ledger.total;
    first.child.kill('SIGCONT');
    await expect.poll(() => processesOf(`FLOE_MARK=${marker}`), POLL).toEqual([]);
    await expect.poll(async () => (await attemptsOf(server.url, session))[0]?.kind, POLL).toBe('partial');
    expect(sim.ledger.total).toBe(asked);
    const attempts = await attemptsOf(server.url, session);
    expect(attempts.map(({ kind }) => kind)).toEqual(['partial', 'result']);
    expect(attempts[0]?.attempt).toBe(1);
    expect(attempts[0]?.summary).toMatchObject({ error: { code: 'stale_epoch' }, reward: null });
    expect(attempts[0]?.summary.completion_count).toBeGreaterThanOrEqual(2);
    await expect.poll(() => leftOf(first.stateDir), POLL).toEqual([]);
    // It is of use again.
    await second.end('SIGTERM');
    const { session_ids } = await client.submit({
      instruction: 'Talk.',
      agent: { harness: 'shell', custom_shell: conversation(1) },
    });
    expect(await resultOf(session_ids[0] as string)).toMatchObject({ outcome: 'completed', node_id: 'first' });
    await first.end('SIGTERM');
  });

  it('whose id a newer process takes ends its sessions, says so, and exits with 1', LONG, async () => {
    const marker = 'floe-test-takeover';
    const older = await start('same', 'older');
    const session = await running(marker);
    const newer = await start('same', 'newer');
    expect(await older.end('SIGCONT')).toBe(1);
    expect(older.output()).toContain('another process registered as node same');
    await expect.poll(() => processesOf(`FLOE_MARK=${marker}`), POLL).toEqual([]);
    expect(await resultOf(session)).toMatchObject({ outcome: 'completed', attempt: 2 });
    expect(await attemptsOf(server.url, session)).toMatchObject([{ attempt: 1, kind: 'partial' }, { attempt: 2 }]);
    await newer.end('SIGTERM');
  });

  it('that drains finishes what runs, takes no more, and hands back what does not end in time', LONG, async () => {
    const first = await start('drained', 'drained', [
      '--drain-seconds',
      '60',
      '--run',
      '2',
      '--ready',
      '0',
      '--init',
      '2',
    ]);
    const done = join(dir, 'done');
    const { session_ids } = await client.submit({
      instruction: 'Wait.',
      num_samples: 2,
      agent: {
        harness: 'shell',
        custom_shell: `${conversation(1)}; [ "$FLOE_SAMPLE_INDEX" = 1 ] && exec sleep 600; until [ -e ${done} ]; do sleep 0.05; done`,
      },
    });
    const turns = () => Promise.all(session_ids.map(async (id) => (await client.session(id)).turns));
    await expect.poll(turns, POLL).toEqual([1, 1]);
    first.child.kill('SIGTERM');
    await expect.poll(() => first.output(), POLL).toContain('taking no more sessions');
    const { session_ids: later } = await client.submit({
      instruction: 'x',
      agent: { harness: 'shell', custom_shell: conversation(1) },
    });
    await writeFile(done, '');
    expect(await resultOf(session_ids[0] as string)).toMatchObject({ outcome: 'completed', attempt: 1 });
    expect(await client.session(later[0] as string)).toMatchObject({ status: 'QUEUED', attempt: 1 });
    // The second signal ends the wait: what still runs goes back to the queue.
    expect(await first.end('SIGTERM').then(() => first.child.exitCode ?? first.child.signalCode)).not.toBeNull();
    await expect.poll(async () => (await client.session(session_ids[1] as string)).status, POLL).toBe('QUEUED');
    await client.cancelSession(session_ids[1] as string);
  });
});
