import type { FloeClient, NodeApi } from '@floe-rl/client';
import type { Lease, SessionProgress } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { METRICS, summaryOf, task, Workbench } from '../workbench.ts';

let bench: Workbench;
let client: FloeClient;
let node: NodeApi;
beforeEach(async () => {
  bench = await Workbench.create();
  const running = await bench.server();
  client = await running.client();
  node = await running.node();
});
afterEach(() => bench.dispose());

async function lease(): Promise<Lease> {
  await client.submit(task({ max_attempts: 1 }));
  const [leased] = await node.lease({ slots: 1, wait_seconds: 0 });
  if (leased === undefined) throw new Error('nothing was leased');
  return leased;
}

async function beat({ session_id, epoch }: Lease, fields: Partial<SessionProgress>): Promise<void> {
  const session = { session_id, epoch, status: 'RUNNING' as const, turns: 0, sampled_tokens: 0, ...fields };
  const heartbeat = { metrics: METRICS, refuses: null, sessions: [session], engines: null, wait_seconds: 0 };
  await node.heartbeat(heartbeat, AbortSignal.timeout(5_000), 5);
}

describe('GET /sessions/live', () => {
  it('lists the sessions that nodes run, with the newest reply, until they end', async () => {
    const leased = await lease();
    expect(await client.liveSessions()).toMatchObject({ total: 1, sessions: [{ status: 'LEASED', last_reply: null }] });
    await beat(leased, { turns: 1, sampled_tokens: 7, last_reply: 'First.' });
    await beat(leased, { turns: 2, sampled_tokens: 9 });
    expect(await client.liveSessions({ task: leased.task_id })).toMatchObject({
      total: 1,
      sessions: [
        { session_id: leased.session_id, node_id: 'node-1', turns: 2, sampled_tokens: 9, last_reply: 'First.' },
      ],
    });
    expect(await client.liveSessions({ task: 'other' })).toEqual({ total: 1, sessions: [] });
    await node.deliverResult({ summary: summaryOf(leased), trajectory: null, completions: null, artifacts: null });
    expect(await client.liveSessions()).toEqual({ total: 0, sessions: [] });
  });

  it('returns at most as many sessions as requested, with the number of all', async () => {
    const first = await lease();
    await lease();
    expect(await client.liveSessions({ limit: 1 })).toMatchObject({
      total: 2,
      sessions: [{ session_id: first.session_id }],
    });
  });

  it('sends a new reply as an event', async () => {
    const leased = await lease();
    const stop = new AbortController();
    const events = client.events(stop.signal);
    const next = events.next();
    // A client cannot see when its event stream is open. The session therefore makes progress until an event arrives.
    let turns = 0;
    let isOver = false;
    const seen = next.finally(() => {
      isOver = true;
    });
    while (!isOver) {
      await beat(leased, { turns: ++turns, last_reply: `Reply ${turns}.` });
    }
    expect((await seen).value).toMatchObject({
      type: 'session.state_changed',
      last_reply: expect.stringMatching(/^Reply \d+\.$/),
    });
    stop.abort();
    await events.return(undefined).catch(() => {});
  });
});
