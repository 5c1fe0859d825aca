import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { NodeProcess, SessionResult, SessionView } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { attemptsOf, completionsOf, GatewayFleet, type GatewayProcess } from './gateway-process.ts';
import { processesOf } from './processes.ts';
import { oneCall } from './stack.ts';

const TIMES = { timeout: 90_000, interval: 20 };

let fleet: GatewayFleet;
beforeEach(async () => {
  // Only a session that is reported as lost returns to the queue while the test runs.
  fleet = await GatewayFleet.open({ lease_seconds: 600 });
});
afterEach(() => fleet.close());

/** Starts a node of two processes, and four sessions that end when {@link openGate} was called. Resolves when all have made their call. */
async function startSessions(args: readonly string[] = []): Promise<{ gateway: GatewayProcess; ids: string[] }> {
  const options = { stateDir: 'gateway', args: ['--processes', '2', '--memory-mb', '100000', ...args] };
  const gateway = await fleet.start('n', 'local', options);
  const { session_ids } = await fleet.client.submit({
    instruction: 'Wait.',
    num_samples: 4,
    agent: { harness: 'shell', custom_shell: `${oneCall('hello')}; until [ -e ${gate()} ]; do sleep 0.1; done` },
    evaluator: { strategy: 'session_completed' },
  });
  for (const id of session_ids) await expect.poll(async () => (await fleet.client.session(id)).turns, TIMES).toBe(1);
  return { gateway, ids: [...session_ids] };
}

const gate = (): string => join(fleet.dir, 'gate');
const openGate = (): Promise<void> => writeFile(gate(), '');

async function processes(): Promise<readonly NodeProcess[]> {
  return (await fleet.client.status()).nodes[0]?.metrics.processes ?? [];
}

/** Returns the pids of the child processes that run the sessions of a gateway. */
function workersOf({ stateDir }: GatewayProcess): number[] {
  const own = processesOf(`FLOE_HOME=${stateDir}-home`);
  return processesOf('gateway/processes/worker.js').filter((pid) => own.includes(pid));
}

async function resultsOf(ids: readonly string[]): Promise<SessionResult[]> {
  return Promise.all(ids.map((id) => fleet.resultOf(id)));
}

describe('a node of two processes', () => {
  it('runs sessions in both, and loses only those of a process that is killed', { timeout: 240_000 }, async () => {
    const { gateway, ids } = await startSessions();
    const runs = async (): Promise<number[]> => (await processes()).map((one) => one.run_inflight);
    await expect.poll(async () => (await runs()).reduce((sum, count) => sum + count, 0), TIMES).toBe(4);
    expect(Math.min(...(await runs()))).toBeGreaterThan(0);
    const [worker, ...others] = workersOf(gateway);
    expect([worker, others.length]).toEqual([expect.any(Number), 1]);
    const before = await runs();

    process.kill(worker as number, 'SIGKILL');
    await expect.poll(async () => (await processes()).map(({ ends }) => ends).sort(), TIMES).toEqual([0, 1]);
    const lostCount = before[(await processes()).findIndex(({ ends }) => ends === 1)] ?? 0;
    const attempts = Array.from({ length: 4 }, (_, at) => (at < 4 - lostCount ? 1 : 2));
    const sessions = (): Promise<SessionView[]> => Promise.all(ids.map((id) => fleet.client.session(id)));
    await expect.poll(async () => (await sessions()).map(({ attempt }) => attempt).sort(), TIMES).toEqual(attempts);
    await expect.poll(async () => (await processes()).map(({ state }) => state), TIMES).toEqual(['running', 'running']);
    expect(workersOf(gateway)).toHaveLength(2);

    await openGate();
    const results = await resultsOf(ids);
    expect(results.map(({ outcome }) => outcome)).toEqual(Array.from({ length: 4 }, () => 'completed'));
    expect(results.map(({ attempt }) => attempt).sort()).toEqual(attempts);
    for (const { session_id, attempt } of results) {
      if (attempt === 1) continue;
      const first = async () => (await attemptsOf(fleet.server.url, session_id)).find((one) => one.attempt === 1);
      await expect.poll(first, TIMES).toMatchObject({ kind: 'partial', summary: { error: { code: 'node_died' } } });
      expect(await completionsOf(fleet.server.url, session_id, 1)).toHaveLength(1);
    }
  });

  it('does not restart a process that ends repeatedly, and runs sessions in the other', {
    timeout: 240_000,
  }, async () => {
    const gateway = await fleet.start('n', 'local', { stateDir: 'gateway', args: ['--processes', '2'] });
    const [kept] = workersOf(gateway);
    const others = (): number[] => workersOf(gateway).filter((pid) => pid !== kept);
    for (let ends = 1; ends <= 5; ends++) {
      await expect.poll(others, TIMES).toHaveLength(1);
      for (const pid of others()) process.kill(pid, 'SIGKILL');
      await expect.poll(async () => Math.max(...(await processes()).map((one) => one.ends)), TIMES).toBe(ends);
    }
    await expect
      .poll(async () => (await processes()).map(({ state }) => state).sort(), TIMES)
      .toEqual(['running', 'stopped']);
    await openGate();
    const { session_ids } = await fleet.client.submit({
      instruction: '',
      num_samples: 3,
      agent: { harness: 'shell', custom_shell: 'true' },
      evaluator: { strategy: 'session_completed' },
    });
    expect((await resultsOf(session_ids)).map(({ attempt }) => attempt)).toEqual([1, 1, 1]);
    expect(workersOf(gateway)).toEqual([kept]);
  });

  it('ends its sessions and exits when a newer gateway has its node id', { timeout: 240_000 }, async () => {
    const { gateway, ids } = await startSessions();
    await openGate();
    await resultsOf(ids);
    const closed = once(gateway.child, 'close');
    await fleet.start('n', 'local', { stateDir: 'newer' });
    expect((await closed)[0]).toBe(1);
    expect(gateway.output()).toContain('give each its own node id');
    expect(workersOf(gateway)).toEqual([]);
  });

  it('lets the sessions of all processes finish when it drains', { timeout: 240_000 }, async () => {
    const { gateway, ids } = await startSessions(['--drain-seconds', '600']);
    const ended = gateway.end('SIGTERM');
    await expect.poll(() => gateway.output(), TIMES).toContain('running ones have 600 s to finish');
    await openGate();
    expect((await resultsOf(ids)).map(({ outcome, attempt }) => [outcome, attempt])).toEqual(
      Array.from({ length: 4 }, () => ['completed', 1]),
    );
    expect(await ended).toBe(0);
    expect(workersOf(gateway)).toEqual([]);
  });

  it('also ends a process that is suspended when it stops', { timeout: 240_000 }, async () => {
    const { gateway } = await startSessions();
    const [suspended] = workersOf(gateway);
    process.kill(suspended as number, 'SIGSTOP');
    expect(await gateway.end('SIGTERM')).toBe(0);
    expect(workersOf(gateway)).toEqual([]);
  });

  it('returns the sessions of all processes to the queue when it stops', { timeout: 240_000 }, async () => {
    const { gateway, ids } = await startSessions();
    expect(await gateway.end('SIGTERM')).toBe(0);
    const views = await Promise.all(ids.map((id) => fleet.client.session(id)));
    expect(views.map(({ status }) => status)).toEqual(Array.from({ length: 4 }, () => 'QUEUED'));
  });

  it.each([
    ['2', '1'],
    ['1', '2'],
    ['3', '2'],
  ])(
    'leaves no process when a node of %s is killed, and one of %s recovers its records',
    { timeout: 240_000 },
    async (...counts) => {
      const [before, after] = counts;
      const { gateway, ids } = await startSessions([`--processes=${before}`]);
      await gateway.end('SIGKILL');
      await expect.poll(() => workersOf(gateway), TIMES).toEqual([]);
      await openGate();
      await fleet.start('n', 'local', { stateDir: 'gateway', args: [`--processes=${after}`] });
      for (const { outcome, attempt } of await resultsOf(ids)) expect([outcome, attempt]).toEqual(['completed', 2]);
      for (const id of ids) {
        const first = async () => (await attemptsOf(fleet.server.url, id)).find((one) => one.attempt === 1);
        await expect.poll(first, TIMES).toMatchObject({ kind: 'partial', summary: { completion_count: 1 } });
      }
    },
  );
});
