import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { attemptsOf, conversation, GatewayFleet, leftOf } from './gateway-process.ts';
import { processesOf } from './processes.ts';

const POLL = { timeout: 90_000, interval: 20 };
const LONG = { timeout: 240_000 };

describe('a node', () => {
  let fleet: GatewayFleet;
  beforeAll(async () => {
    fleet = await GatewayFleet.open({ lease_seconds: 3 });
  });
  afterAll(() => fleet.close());

  /**
   * Submits a session whose first attempt makes two model calls, waits until the file `goOn` exists if one is given, and then repeats
   * model calls until it is ended. Resolves with the session's id after the second model call.
   */
  async function running(marker: string, goOn?: string): Promise<string> {
    const wait = goOn === undefined ? '' : `until [ -e ${goOn} ]; do sleep 0.05; done;`;
    const endless = `export FLOE_MARK=${marker}; ${conversation(2)}; ${wait} ${conversation(10_000)}`;
    const { session_ids } = await fleet.client.submit({
      instruction: 'Talk.',
      agent: { harness: 'shell', custom_shell: `[ "$FLOE_ATTEMPT" = 1 ] && { ${endless}; }; ${conversation(1)}` },
      evaluator: { strategy: 'session_completed' },
    });
    const [session] = session_ids;
    await expect
      .poll(async () => (await fleet.client.session(session as string)).turns, POLL)
      .toBeGreaterThanOrEqual(2);
    return session as string;
  }

  it(
    'that was suspended for longer than its lease calls no engine and delivers no result when it resumes',
    LONG,
    async () => {
      const marker = 'floe-test-pause';
      const first = await fleet.start('first', 'local');
      const goOn = join(fleet.dir, 'go-on');
      const session = await running(marker, goOn);
      // The agent makes its next call when the node is suspended, so that no call is on its way to the engine at that time.
      first.child.kill('SIGSTOP');
      await writeFile(goOn, '');
      const second = await fleet.start('second', 'local');
      // The server may also have leased the second attempt to the suspended node, in reply to a request that the node sent before its
      // suspension.
      expect(await fleet.resultOf(session)).toMatchObject({ outcome: 'completed', node_id: 'second' });
      // The agent's process on the suspended node is not suspended. It still waits for the reply to a model call.
      expect(processesOf(`FLOE_MARK=${marker}`)).not.toEqual([]);
      const sampled = fleet.sim.ledger.total;
      first.child.kill('SIGCONT');
      await expect.poll(() => processesOf(`FLOE_MARK=${marker}`), POLL).toEqual([]);
      await expect.poll(async () => (await attemptsOf(fleet.server.url, session))[0]?.kind, POLL).toBe('partial');
      expect(fleet.sim.ledger.total).toBe(sampled);
      const attempts = await attemptsOf(fleet.server.url, session);
      expect(attempts.map(({ kind }) => kind)).toEqual(['partial', 'result']);
      expect(attempts[0]?.attempt).toBe(1);
      expect(attempts[0]?.summary).toMatchObject({ error: { code: 'stale_epoch' }, reward: null });
      expect(attempts[0]?.summary.completion_count).toBeGreaterThanOrEqual(2);
      await expect.poll(() => leftOf(first.stateDir), POLL).toEqual([]);
      // After it has resumed, the node must be able to run sessions. The other node is ended, so that no other node can run the next
      // session.
      await second.end('SIGTERM');
      const { session_ids } = await fleet.client.submit({
        instruction: 'Talk.',
        agent: { harness: 'shell', custom_shell: conversation(1) },
      });
      expect(await fleet.resultOf(session_ids[0] as string)).toMatchObject({ outcome: 'completed', node_id: 'first' });
      await first.end('SIGTERM');
    },
  );

  it('whose id a newer process takes over ends its sessions, reports that, and exits with 1', LONG, async () => {
    const marker = 'floe-test-takeover';
    const older = await fleet.start('same', 'local', { stateDir: 'older' });
    const session = await running(marker);
    const newer = await fleet.start('same', 'local', { stateDir: 'newer' });
    expect(await older.end('SIGCONT')).toBe(1);
    expect(older.output()).toContain('another process registered as node same');
    await expect.poll(() => processesOf(`FLOE_MARK=${marker}`), POLL).toEqual([]);
    expect(await fleet.resultOf(session)).toMatchObject({ outcome: 'completed', attempt: 2 });
    expect(await attemptsOf(fleet.server.url, session)).toMatchObject([
      { attempt: 1, kind: 'partial' },
      { attempt: 2 },
    ]);
    await newer.end('SIGTERM');
  });

  it(
    'that drains completes running sessions, leases no more, and returns those that do not end in time',
    LONG,
    async () => {
      const first = await fleet.start('drained', 'local', {
        args: ['--drain-seconds', '60', '--run', '2', '--ready', '0', '--init', '2'],
      });
      const done = join(fleet.dir, 'done');
      const { session_ids } = await fleet.client.submit({
        instruction: 'Wait.',
        num_samples: 2,
        agent: {
          harness: 'shell',
          custom_shell: `${conversation(1)}; [ "$FLOE_SAMPLE_INDEX" = 1 ] && exec sleep 600; until [ -e ${done} ]; do sleep 0.05; done`,
        },
      });
      const turns = () => Promise.all(session_ids.map(async (id) => (await fleet.client.session(id)).turns));
      await expect.poll(turns, POLL).toEqual([1, 1]);
      first.child.kill('SIGTERM');
      await expect.poll(() => first.output(), POLL).toContain('taking no more sessions');
      const { session_ids: later } = await fleet.client.submit({
        instruction: 'x',
        agent: { harness: 'shell', custom_shell: conversation(1) },
      });
      await writeFile(done, '');
      expect(await fleet.resultOf(session_ids[0] as string)).toMatchObject({ outcome: 'completed', attempt: 1 });
      expect(await fleet.client.session(later[0] as string)).toMatchObject({ status: 'QUEUED', attempt: 1 });
      // A second SIGTERM ends the drain early. The session that is still running then returns to the queue.
      expect(await first.end('SIGTERM').then(() => first.child.exitCode ?? first.child.signalCode)).not.toBeNull();
      await expect.poll(async () => (await fleet.client.session(session_ids[1] as string)).status, POLL).toBe('QUEUED');
      await fleet.client.cancelSession(session_ids[1] as string);
    },
  );
});
