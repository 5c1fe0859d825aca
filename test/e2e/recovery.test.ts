import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { chooseBackend } from '../../src/cli/backend.ts';
import { type RunningServer, startServer } from '../../src/cli/stack.ts';
import { FloeClient } from '../../src/client/index.ts';
import { silentLogger } from '../../src/observe/log.ts';
import type { SessionResult } from '../../src/schema/index.ts';
import { type SimServer, startSim } from '../../src/sim/index.ts';
import {
  attemptsOf,
  completionsOf,
  conversation,
  type GatewayProcess,
  helpersOf,
  leftOf,
  startGatewayProcess,
} from './gateway-process.ts';
import { processesOf } from './processes.ts';

const choice = await chooseBackend();
const backends = choice.problem === null ? (['bubblewrap', 'local'] as const) : (['local'] as const);
const POLL = { timeout: 20_000, interval: 20 };
/** Gateways take seconds to start on a busy machine. */
const LONG = { timeout: 120_000 };

/** What an agent leaves running that does not want to go. */
const stubborn = (marker: string): string =>
  `trap "" TERM HUP INT; export FLOE_MARK=${marker}; (setsid sh -c "sleep 600 & sleep 600" &); sleep 600`;

describe.each(backends)('a node with %s sandboxes', (backend) => {
  let dir: string;
  let sim: SimServer;
  let server: RunningServer;
  let client: FloeClient;
  const gateways: GatewayProcess[] = [];

  beforeAll(async () => {
    dir = await mkdtemp(join(tmpdir(), 'floe-recovery-'));
    sim = await startSim();
    const times = { sweep_seconds: 0.2, retry_backoff_seconds: 0.1, avoid_node_seconds: 0, lease_seconds: 30 };
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

  async function start(name: string): Promise<GatewayProcess> {
    const gateway = await startGatewayProcess({
      server: server.url,
      engine: sim.url,
      backend,
      nodeId: name,
      stateDir: join(dir, name),
    });
    gateways.push(gateway);
    return gateway;
  }

  async function resultOf(session: string): Promise<SessionResult> {
    for await (const result of client.results()) if (result.session_id === session) return result;
    throw new Error('the results ended');
  }

  /** Every id of every completion is the one that the engine sampled for it. */
  function expectAsSampled(kept: Awaited<ReturnType<typeof completionsOf>>, session: string): void {
    for (const { completion_id, response_ids } of kept) {
      const [entry] = sim.ledger.entries({ requestId: completion_id });
      expect({ session, ids: response_ids }).toEqual({ session: entry?.session_id, ids: entry?.response_ids });
    }
  }

  async function expectNothingLeft(stateDir: string): Promise<void> {
    await expect.poll(() => leftOf(stateDir), POLL).toEqual([]);
    await expect.poll(() => readdir(join(stateDir, 'attempts')), POLL).toEqual([]);
    expect(await readdir(join(stateDir, 'quarantine'))).toEqual([]);
  }

  it.each(['gateway', 'spawn helper', 'gateway and spawn helper'])(
    'loses nothing to kill -9 of its %s',
    LONG,
    async (victim) => {
      const name = victim.replaceAll(' ', '-');
      const marker = `floe-test-recovery-${backend}-${name}`;
      const first = await start(name);
      const script = `${conversation(3)}; [ "$FLOE_ATTEMPT" = 1 ] && { ${stubborn(marker)}; }; true`;
      const { session_ids } = await client.submit({
        instruction: 'Talk.',
        agent: { harness: 'shell', custom_shell: script },
        evaluator: { strategy: 'session_completed' },
      });
      const session = session_ids[0] as string;
      await expect.poll(async () => (await client.session(session)).turns, POLL).toBe(3);
      await expect.poll(() => processesOf(`FLOE_MARK=${marker}`).length, POLL).toBeGreaterThan(2);

      const helpers = await helpersOf(first.stateDir);
      expect(helpers).toHaveLength(1);
      // Stopped first, so that it cannot end its children when the gateway goes.
      if (victim.includes('helper')) for (const pid of helpers) process.kill(pid, 'SIGSTOP');
      if (victim.includes('gateway')) await first.end('SIGKILL');
      if (victim.includes('helper')) for (const pid of helpers) process.kill(pid, 'SIGKILL');
      if (victim.includes('gateway')) await start(name);

      expect(await resultOf(session)).toMatchObject({
        outcome: 'completed',
        reward: 1,
        attempt: 2,
        completion_count: 3,
      });
      await expect.poll(() => processesOf(`FLOE_MARK=${marker}`), POLL).toEqual([]);
      const kind = victim.includes('gateway') ? 'partial' : 'retried';
      await expect.poll(async () => (await attemptsOf(server.url, session))[0]?.kind, POLL).toBe(kind);
      const [attempt] = await attemptsOf(server.url, session);
      expect(attempt).toMatchObject({
        attempt: 1,
        summary: { outcome: 'infra_error', completion_count: 3, reward: null },
        parts: ['trajectory', 'completions'],
      });
      if (kind === 'partial') expect(attempt?.summary.error?.code).toBe('node_died');
      const kept = await completionsOf(server.url, session, 1);
      expect(kept).toHaveLength(3);
      expectAsSampled(kept, session);
      await expectNothingLeft(first.stateDir);
      await gateways.at(-1)?.end('SIGTERM');
      expect(await readdir(join(first.stateDir, 'journal'))).toEqual([]);
    },
  );

  it('loses nothing to kill -9 at many points of many sessions', LONG, async () => {
    const marker = `floe-test-storm-${backend}`;
    let gateway = await start('storm');
    const { task_id: task, session_ids } = await client.submit({
      instruction: 'Talk.',
      num_samples: 12,
      max_attempts: 10,
      agent: { harness: 'shell', custom_shell: `export FLOE_MARK=${marker}; (setsid sleep 600 &); ${conversation(4)}` },
      evaluator: { strategy: 'session_completed' },
    });
    // Kill after ever more signs of life, the whole process or its helper too.
    let latest = '';
    for (let kills = 1; kills <= 6; kills++) {
      let signs = 0;
      let over = false;
      const alive = async (): Promise<boolean> => {
        const views = await client.sessions(task);
        const now = views.map(({ status, turns, attempt }) => `${status} ${turns} ${attempt}`).join();
        if (now !== latest) signs++;
        latest = now;
        over = views.every((view) => view.summary !== null);
        return over || signs > 2 + kills;
      };
      await expect.poll(alive, POLL).toBe(true);
      if (over) break;
      if (kills % 2 === 0) for (const pid of await helpersOf(gateway.stateDir)) process.kill(pid, 'SIGKILL');
      await gateway.end('SIGKILL');
      gateway = await start('storm');
    }
    const results = await Promise.all(session_ids.map(resultOf));
    expect(results.map((result) => result.outcome)).toEqual(Array(12).fill('completed'));
    await expect.poll(() => readdir(join(gateway.stateDir, 'attempts')), POLL).toEqual([]);
    let partials = 0;
    for (const session of session_ids) {
      for (const { attempt, kind, summary, parts } of await attemptsOf(server.url, session)) {
        if (kind === 'partial') partials++;
        if (!parts.includes('completions')) continue;
        const kept = await completionsOf(server.url, session, attempt);
        expect(kept).toHaveLength(summary.completion_count);
        expectAsSampled(kept, session);
      }
    }
    expect(partials).toBeGreaterThan(0);
    await expect.poll(() => processesOf(`FLOE_MARK=${marker}`), POLL).toEqual([]);
    await expectNothingLeft(gateway.stateDir);
    await gateway.end('SIGTERM');
    expect(await readdir(join(gateway.stateDir, 'journal'))).toEqual([]);
  });
});
