import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { attemptsOf, completionsOf, conversation, GatewayFleet, helpersOf, leftOf } from './gateway-process.ts';
import { processesOf, stubbornCommand } from './processes.ts';
import { workingBackends } from './stack.ts';

const POLL = { timeout: 90_000, interval: 20 };
/** Test options with a time limit of 120 s, because gateways take seconds to start on a busy machine. */
const LONG = { timeout: 240_000 };

describe.each(await workingBackends())('a node with %s sandboxes', (backend) => {
  let fleet: GatewayFleet;
  beforeAll(async () => {
    fleet = await GatewayFleet.open({ lease_seconds: 30 });
  });
  afterAll(() => fleet.close());

  /** Expects that the stored completions have exactly the token ids that the engine sampled. */
  function expectAsSampled(kept: Awaited<ReturnType<typeof completionsOf>>, session: string): void {
    for (const { completion_id, response_ids } of kept) {
      const [entry] = fleet.sim.ledger.entries({ requestId: completion_id });
      expect({ session, ids: response_ids }).toEqual({ session: entry?.session_id, ids: entry?.response_ids });
    }
  }

  async function expectNothingLeft(stateDir: string): Promise<void> {
    await expect.poll(() => leftOf(stateDir), POLL).toEqual([]);
    await expect.poll(() => readdir(join(stateDir, 'attempts')), POLL).toEqual([]);
    expect(await readdir(join(stateDir, 'quarantine'))).toEqual([]);
  }

  it.each(['gateway', 'spawn helper', 'gateway and spawn helper'])(
    'loses no completion when its %s is killed',
    LONG,
    async (victim) => {
      const name = victim.replaceAll(' ', '-');
      const marker = `floe-test-recovery-${backend}-${name}`;
      const first = await fleet.start(name, backend);
      const script = `${conversation(3)}; [ "$FLOE_ATTEMPT" = 1 ] && { ${stubbornCommand(marker)}; }; true`;
      const { session_ids } = await fleet.client.submit({
        instruction: 'Talk.',
        agent: { harness: 'shell', custom_shell: script },
        evaluator: { strategy: 'session_completed' },
      });
      const session = session_ids[0] as string;
      await expect.poll(async () => (await fleet.client.session(session)).turns, POLL).toBe(3);
      await expect.poll(() => processesOf(`FLOE_MARK=${marker}`).length, POLL).toBeGreaterThan(2);

      const helpers = await helpersOf(first.stateDir);
      expect(helpers).toHaveLength(1);
      // The helper processes that start sandboxes are suspended first. Otherwise they would end their child processes when the gateway
      // ends, before the test kills them.
      if (victim.includes('helper')) for (const pid of helpers) process.kill(pid, 'SIGSTOP');
      if (victim.includes('gateway')) await first.end('SIGKILL');
      if (victim.includes('helper')) for (const pid of helpers) process.kill(pid, 'SIGKILL');
      if (victim.includes('gateway')) await fleet.start(name, backend);

      expect(await fleet.resultOf(session)).toMatchObject({
        outcome: 'completed',
        reward: 1,
        attempt: 2,
        completion_count: 3,
      });
      await expect.poll(() => processesOf(`FLOE_MARK=${marker}`), POLL).toEqual([]);
      const kind = victim.includes('gateway') ? 'partial' : 'retried';
      await expect.poll(async () => (await attemptsOf(fleet.server.url, session))[0]?.kind, POLL).toBe(kind);
      const [attempt] = await attemptsOf(fleet.server.url, session);
      expect(attempt).toMatchObject({
        attempt: 1,
        summary: { outcome: 'infra_error', completion_count: 3, reward: null },
        parts: ['trajectory', 'completions'],
      });
      if (kind === 'partial') expect(attempt?.summary.error?.code).toBe('node_died');
      const kept = await completionsOf(fleet.server.url, session, 1);
      expect(kept).toHaveLength(3);
      expectAsSampled(kept, session);
      await expectNothingLeft(first.stateDir);
      await fleet.gateways.at(-1)?.end('SIGTERM');
      expect(await readdir(join(first.stateDir, 'journal'))).toEqual([]);
    },
  );

  it('loses no completion when it is killed at many points of many sessions', LONG, async () => {
    const marker = `floe-test-storm-${backend}`;
    let gateway = await fleet.start('storm', backend);
    const { task_id: task, session_ids } = await fleet.client.submit({
      instruction: 'Talk.',
      num_samples: 12,
      max_attempts: 10,
      agent: { harness: 'shell', custom_shell: `export FLOE_MARK=${marker}; (setsid sleep 600 &); ${conversation(4)}` },
      evaluator: { strategy: 'session_completed' },
    });
    // Kills the gateway up to six times. Before each kill, the test waits for one more change of the sessions' states than before the
    // previous kill. At every second kill, the helper process that starts sandboxes is killed as well.
    let latest = '';
    for (let kills = 1; kills <= 6; kills++) {
      let changes = 0;
      let done = false;
      const progressed = async (): Promise<boolean> => {
        const views = await fleet.client.sessions(task);
        const now = views.map(({ status, turns, attempt }) => `${status} ${turns} ${attempt}`).join();
        if (now !== latest) changes++;
        latest = now;
        done = views.every((view) => view.summary !== null);
        return done || changes > 2 + kills;
      };
      await expect.poll(progressed, POLL).toBe(true);
      if (done) break;
      if (kills % 2 === 0) for (const pid of await helpersOf(gateway.stateDir)) process.kill(pid, 'SIGKILL');
      await gateway.end('SIGKILL');
      gateway = await fleet.start('storm', backend);
    }
    const results = await Promise.all(session_ids.map((session) => fleet.resultOf(session)));
    expect(results.map((result) => result.outcome)).toEqual(Array(12).fill('completed'));
    await expect.poll(() => readdir(join(gateway.stateDir, 'attempts')), POLL).toEqual([]);
    let partials = 0;
    for (const session of session_ids) {
      for (const { attempt, kind, summary, parts } of await attemptsOf(fleet.server.url, session)) {
        if (kind === 'partial') partials++;
        if (!parts.includes('completions')) continue;
        const kept = await completionsOf(fleet.server.url, session, attempt);
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
