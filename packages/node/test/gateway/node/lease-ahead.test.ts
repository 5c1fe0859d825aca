import type { HeartbeatReply } from '@floe-rl/core/schema';
import { afterEach, describe, expect, it } from 'vitest';
import type { NodeAgent } from '../../../src/gateway/node/node-agent.ts';
import { StagePools } from '../../../src/gateway/node/stage-pools.ts';
import { settle, untilAborted } from '../session-bench.ts';
import { SuspendableClock } from '../suspendable-clock.ts';
import { NO_CHANGES, nodeBench } from './node-bench.ts';

let agent: NodeAgent | null = null;
afterEach(() => agent?.close());

async function settleAll(): Promise<void> {
  for (let i = 0; i < 5; i++) await settle();
}

describe('a node', () => {
  it('requests sessions that will wait in READY only while the replies to its heartbeats allow it', async () => {
    const clock = new SuspendableClock();
    const requested: number[] = [];
    let reply: HeartbeatReply = { ...NO_CHANGES, lease_ahead: false };
    const bench = nodeBench(
      {
        lease: async ({ slots }) => {
          requested.push(slots);
          return [];
        },
        heartbeat: async ({ wait_seconds: seconds }, signal) =>
          seconds === 0 ? reply : untilAborted(signal as AbortSignal),
      },
      { clock, pools: new StagePools({ init: 4, ready: 2, run: 1, postrun: 1 }) },
    );
    agent = bench.agent;
    await agent.start();
    await settleAll();
    expect(new Set(requested.splice(0))).toEqual(new Set([1]));
    reply = NO_CHANGES;
    agent.reportSoon();
    clock.advance(200);
    await settleAll();
    expect(requested.at(-1)).toBe(3);
  });
});
