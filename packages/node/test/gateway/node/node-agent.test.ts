import { PassThrough } from 'node:stream';
import type { DeliveredResult, NodeApi } from '@floe-rl/client';
import { FloeError } from '@floe-rl/core';
import type { Lease } from '@floe-rl/core/schema';
import { createLogger } from '@floe-rl/observe';
import { afterEach, describe, expect, it } from 'vitest';
import type { FinishedSpan } from '../../../../observe/src/span-exporter.ts';
import { recordingTracer } from '../../../../observe/src/tracing.ts';
import type { NodeAgent, NodeAgentDeps } from '../../../src/gateway/node/node-agent.ts';
import { StagePools } from '../../../src/gateway/node/stage-pools.ts';
import type { Attempt } from '../../../src/gateway/session/attempt.ts';
import { settle, untilAborted } from '../session-bench.ts';
import { SuspendableClock } from '../suspendable-clock.ts';
import { finishedResult, LEASE, leasing, NO_CHANGES, type NodeBench, nodeBench } from './node-bench.ts';

let agent: NodeAgent | null = null;
const clock = new SuspendableClock();
// Closes the agent under test. The agent waits between its last calls, so the virtual clock is advanced until the agent has closed.
async function close(): Promise<void> {
  let closed = false;
  const closing = agent?.close().finally(() => {
    closed = true;
  });
  for (let i = 0; i < 50 && !closed; i++) {
    await settle();
    clock.advance(10_000);
  }
  await closing;
}
afterEach(async () => {
  await close();
  agent = null;
});

function start(api: Partial<NodeApi>, deps: Partial<NodeAgentDeps> = {}): NodeBench {
  const made = nodeBench(api, { clock, ...deps });
  agent = made.agent;
  return made;
}

function linesOf(log: PassThrough): Record<string, unknown>[] {
  const lines = String(log.read()).trim().split('\n');
  return lines.map((line) => JSON.parse(line) as Record<string, unknown>);
}

const refusing = (code: 'unauthorized' | 'not_found') => async (): Promise<never> => {
  throw new FloeError(code, 'no');
};

describe('a node that the server refuses', () => {
  it.each(['unauthorized', 'not_found'] as const)('pauses between calls that are refused with %s', async (code) => {
    const { calls } = start({ heartbeat: refusing(code), lease: refusing(code) });
    await agent?.start();
    for (let i = 0; i < 20; i++) await settle();
    expect(calls.heartbeat + calls.lease).toBeLessThan(10);
    clock.advance(6_000);
    await settle();
    expect(calls.heartbeat + calls.lease).toBeGreaterThan(2);
  });

  it('continues its calls when the server does not know the node any more and refuses to register it', async () => {
    let known = true;
    const { calls } = start({
      register: async () => {
        if (!known) throw new FloeError('unauthorized', 'another token now');
        known = false;
        return {} as never;
      },
      heartbeat: refusing('not_found'),
      lease: refusing('not_found'),
    });
    await agent?.start();
    for (let i = 0; i < 5; i++) {
      await settle();
      clock.advance(6_000);
    }
    expect(calls.register).toBeGreaterThan(2);
  });
});

describe('leases that arrive while the node closes', () => {
  it('are stopped like all other sessions', async () => {
    let answer = (_: Lease[]): void => {};
    const stopped: (string | null)[] = [];
    start(
      { lease: () => new Promise((resolve) => (answer = resolve)) },
      {
        runSession: async (attempt: Attempt) => {
          if (!attempt.signal.aborted) await untilAborted(attempt.signal).catch(() => {});
          stopped.push(attempt.stopReason);
          return null;
        },
      },
    );
    await agent?.start();
    await settle();
    const closing = close();
    answer([LEASE]);
    await closing;
    expect(stopped).toEqual(['shutdown']);
    expect(agent?.live()).toEqual([]);
  });
});

describe('a result that could not be delivered', () => {
  it('keeps its records in the capture journal', async () => {
    let leased = false;
    const { released, calls } = start(
      {
        lease: async (_, signal) => {
          if (leased) return untilAborted(signal as AbortSignal);
          leased = true;
          return [LEASE];
        },
        deliverResult: async () => {
          throw new FloeError('peer_unreachable', 'unreachable');
        },
      },
      { runSession: finishedResult },
    );
    await agent?.start();
    for (let i = 0; i < 5; i++) await settle();
    await close();
    expect(calls.deliver).toBeGreaterThan(1);
    expect(released).toEqual([]);
  });
});

describe('a refusal of a delivery', () => {
  it.each(['unauthorized', 'forbidden', 'not_found', 'bad_request', 'malformed_json'] as const)(
    'is retried when %s concerns the connection to the server',
    async (code) => {
      let wrong = true;
      const { released, calls } = start(
        {
          ...leasing(),
          deliverResult: async () => {
            if (wrong) throw new FloeError(code, 'answered by something in between');
            return {} as never;
          },
        },
        { runSession: finishedResult },
      );
      await agent?.start();
      for (let i = 0; i < 10; i++) {
        await settle();
        clock.advance(5_000);
      }
      expect(calls.deliver).toBeGreaterThan(3);
      expect([released, agent?.live().length]).toEqual([[], 1]);
      wrong = false;
      for (let i = 0; i < 10 && released.length === 0; i++) {
        await settle();
        clock.advance(5_000);
      }
      expect(released).toEqual(['ses_1']);
    },
  );

  it.each(['unauthorized', 'not_found'] as const)(
    'keeps the records for recovery when the node closes during %s',
    async (code) => {
      const { released, calls } = start(
        { ...leasing(), deliverResult: refusing(code) },
        { runSession: finishedResult },
      );
      await agent?.start();
      for (let i = 0; i < 5; i++) await settle();
      await close();
      expect(calls.deliver).toBeGreaterThan(1);
      expect(released).toEqual([]);
    },
  );

  it.each([
    ['cancelled', {}],
    ['schema_violation', {}],
    ['body_too_large', {}],
    ['conflict', { session_id: 'ses_1' }],
    ['not_found', { session_id: 'ses_1' }],
  ] as const)('is final when %s concerns the result, whose records are removed', async (code, details) => {
    const { released, calls } = start(
      {
        ...leasing(),
        deliverResult: async () => {
          throw new FloeError(code, 'no', details);
        },
      },
      { runSession: finishedResult },
    );
    await agent?.start();
    for (let i = 0; i < 20 && released.length === 0; i++) await settle();
    expect([calls.deliver, released]).toEqual([1, ['ses_1']]);
  });
});

describe('a newer process with the id of this node', () => {
  it.each(['heartbeat', 'lease'] as const)('ends every session and this node when %s reports it', async (call) => {
    const taken = new FloeError('conflict', 'instance: another process registered as node node', { field: 'instance' });
    let displaced = false;
    const stopped: (string | null)[] = [];
    const refuse = async (): Promise<never> => {
      throw taken;
    };
    const { calls } = start(
      {
        ...leasing(),
        ...(call === 'heartbeat' && {
          heartbeat: async (_: unknown, signal?: AbortSignal) => {
            if (displaced) throw taken;
            return untilAborted(signal as AbortSignal);
          },
        }),
        ...(call === 'lease' && {
          lease: async () => {
            if (displaced) return refuse();
            displaced = true;
            return [LEASE];
          },
        }),
      },
      {
        pools: new StagePools({ init: 2, ready: 2, run: 2, postrun: 2 }),
        runSession: async (attempt: Attempt) => {
          await untilAborted(attempt.signal).catch(() => {});
          stopped.push(attempt.stopReason);
          return null;
        },
      },
    );
    displaced = call === 'heartbeat';
    const started = agent?.start();
    const reason = await agent?.takenOver;
    await started;
    for (let i = 0; i < 5; i++) await settle();
    expect(reason).toBe(taken);
    if (call === 'lease') expect(stopped).toEqual(['lease_lost']);
    const before = { ...calls };
    clock.advance(60_000);
    await settle();
    expect(calls).toEqual(before);
  });
});

describe('a session that loses its lease', () => {
  it('delivers a partial result instead of a result', async () => {
    const partials: DeliveredResult[] = [];
    const { calls, released } = start(
      {
        ...leasing(),
        heartbeat: async (beat, signal) =>
          beat.sessions.length > 0
            ? { ...NO_CHANGES, stop: [{ session_id: 'ses_1', epoch: 1, reason: 'lease_lost' as const }] }
            : beat.wait_seconds === 0
              ? NO_CHANGES
              : untilAborted(signal as AbortSignal),
        deliverPartial: async (partial) => {
          partials.push(partial);
          return {} as never;
        },
      },
      {
        runSession: async (attempt: Attempt) => {
          attempt.enter('INIT');
          await untilAborted(attempt.signal).catch(() => {});
          return finishedResult();
        },
      },
    );
    await agent?.start();
    for (let i = 0; i < 20 && released.length === 0; i++) {
      await settle();
      clock.advance(200);
    }
    expect(calls).toMatchObject({ deliver: 0, partial: 1 });
    expect(partials[0]?.summary).toMatchObject({
      outcome: 'infra_error',
      reward: null,
      policy: { use: 'drop' },
      error: { code: 'stale_epoch' },
    });
    expect(released).toEqual(['ses_1']);
  });

  it('delivers its result as a partial result when the server refuses it as late', async () => {
    const { calls, released } = start(
      {
        ...leasing(),
        deliverResult: async () => {
          throw new FloeError('stale_epoch', 'a newer epoch owns the session');
        },
      },
      { runSession: finishedResult },
    );
    await agent?.start();
    for (let i = 0; i < 20 && released.length === 0; i++) await settle();
    expect(calls).toMatchObject({ deliver: 1, partial: 1 });
    expect(released).toEqual(['ses_1']);
  });

  it('delivers no partial result when the task was cancelled', async () => {
    const { calls, released } = start(
      {
        ...leasing(),
        deliverResult: async () => {
          throw new FloeError('cancelled', 'the task was cancelled');
        },
      },
      { runSession: finishedResult },
    );
    await agent?.start();
    for (let i = 0; i < 20 && released.length === 0; i++) await settle();
    expect(calls).toMatchObject({ deliver: 1, partial: 0 });
  });
});

describe('undelivered results', () => {
  it('stop the node from leasing sessions when they exceed their limit', async () => {
    let unavailable = true;
    let leases = 0;
    const { released } = start(
      {
        lease: async (_, signal) => {
          if (leases === 3) return untilAborted(signal as AbortSignal);
          leases++;
          return [{ ...LEASE, session_id: `ses_${leases}` }];
        },
        deliverResult: async () => {
          if (unavailable) throw new FloeError('store_unavailable', 'full');
          return {} as never;
        },
      },
      {
        pools: new StagePools({ init: 4, ready: 4, run: 4, postrun: 4 }),
        undeliveredBytes: 1,
        runSession: finishedResult,
      },
    );
    await agent?.start();
    for (let i = 0; i < 20; i++) {
      await settle();
      clock.advance(1_000);
    }
    expect(leases).toBeLessThan(3);
    unavailable = false;
    for (let i = 0; i < 40 && released.length < 3; i++) {
      await settle();
      clock.advance(5_000);
    }
    expect(released.sort()).toEqual(['ses_1', 'ses_2', 'ses_3']);
  });
});

describe('a node that cannot run sessions', () => {
  it('leases no sessions, reports why, and resumes once the reason has passed', async () => {
    let problem: string | null = 'the disk is full';
    const reported: (string | null)[] = [];
    let leases = 0;
    start(
      {
        lease: async (_, signal) => {
          leases++;
          return untilAborted(signal as AbortSignal);
        },
        heartbeat: async (beat, signal) => {
          reported.push(beat.refuses);
          if (beat.wait_seconds > 0) return untilAborted(signal as AbortSignal);
          return NO_CHANGES;
        },
      },
      { problem: async () => problem },
    );
    const later = async () => {
      for (let i = 0; i < 10; i++) await settle().then(() => clock.advance(500));
    };
    await agent?.start();
    await later();
    expect(leases).toBe(0);
    expect(reported.at(-1)).toBe('the disk is full');
    problem = null;
    await later();
    expect(leases).toBe(1);
    expect(reported.at(-1)).toBeNull();
  });
});

describe('heartbeats', () => {
  it('are held by the server, and waited for by the node, only for so long that no lease can expire', async () => {
    const waits: number[] = [];
    const limits: number[] = [];
    start(
      {
        ...leasing({ ...LEASE, lease_seconds: 1.5 }),
        heartbeat: async (beat, signal, answerSeconds) => {
          waits.push(beat.wait_seconds);
          limits.push(beat.wait_seconds + (answerSeconds ?? Number.POSITIVE_INFINITY));
          if (beat.wait_seconds > 0 && beat.sessions.length > 0) return untilAborted(signal as AbortSignal);
          return NO_CHANGES;
        },
      },
      { runSession: (attempt: Attempt) => untilAborted(attempt.signal).catch(() => null) },
    );
    await agent?.start();
    for (let i = 0; i < 50 && !waits.includes(0.25); i++) await settle();
    expect(waits).toContain(0.25);
    expect(limits.at(-1)).toBe(0.5);
    // Even while the node has no lease, it must wait at most 6 s for a server replica that does not reply.
    expect(Math.max(...limits)).toBe(6);
  });

  it('whose replies arrive late do not replace the renewal by a newer heartbeat', async () => {
    let answer = (): void => {};
    let held: Promise<void> | null = null;
    let attempt: Attempt | null = null;
    const { calls } = start(
      {
        ...leasing(),
        heartbeat: async (beat, signal) => {
          if (beat.wait_seconds > 0 && beat.sessions.length > 0) {
            if (held !== null) await untilAborted(signal as AbortSignal);
            held = new Promise((resolve) => {
              answer = resolve;
            });
            await held;
          }
          return NO_CHANGES;
        },
      },
      {
        heartbeatSeconds: 60,
        runSession: (begun: Attempt) => {
          attempt = begun;
          return untilAborted(begun.signal).catch(() => null);
        },
      },
    );
    const renewedMs = (): number => (attempt as Attempt | null)?.renewal.atMs ?? 0;
    await agent?.start();
    for (let i = 0; i < 50 && held === null; i++) await settle();
    clock.advance(1_000);
    await settle();
    expect(held).not.toBeNull();
    clock.advance(1_000);
    const before = calls.heartbeat;
    agent?.reportSoon();
    clock.advance(200);
    await settle();
    expect(calls.heartbeat).toBe(before + 1);
    const newer = renewedMs();
    answer();
    await settle();
    expect(renewedMs()).toBe(newer);
  });

  it('report all changes of one moment in one request', async () => {
    const { calls } = start({});
    await agent?.start();
    await settle();
    const before = calls.heartbeat;
    for (let i = 0; i < 10; i++) agent?.reportSoon();
    clock.advance(200);
    await settle();
    expect(calls.heartbeat - before).toBe(1);
  });

  it('report the progress of sessions as often as the server allows, and other changes at once', async () => {
    let attempt: Attempt | null = null;
    const { calls } = start(
      {
        ...leasing(),
        heartbeat: async ({ wait_seconds: seconds }, signal) => {
          if (seconds > 0) return untilAborted(signal as AbortSignal);
          return { ...NO_CHANGES, report_ms: 5_000 };
        },
      },
      {
        runSession: (begun: Attempt) => {
          attempt = begun;
          return untilAborted(begun.signal).catch(() => null);
        },
      },
    );
    const pass = async (ms: number): Promise<number> => {
      const before = calls.heartbeat;
      clock.advance(ms);
      await settle();
      return calls.heartbeat - before;
    };
    await agent?.start();
    for (let i = 0; i < 50 && attempt === null; i++) await settle();
    await pass(200);
    const progress = (): void => (attempt as Attempt | null)?.recordCalls(1, 1, { role: 'assistant', content: 'x' });
    progress();
    expect([await pass(4_900), await pass(200)]).toEqual([0, 1]);
    progress();
    agent?.reportSoon();
    expect([await pass(200), await pass(10_000)]).toEqual([1, 0]);
  });

  it('that report changes are sent one at a time to a slow server, and include the last change', async () => {
    const answers: (() => void)[] = [];
    let slow = false;
    const { calls } = start({
      heartbeat: async (beat, signal) => {
        if (beat.wait_seconds > 0) return untilAborted(signal as AbortSignal);
        if (slow) await new Promise<void>((resolve) => answers.push(resolve));
        return NO_CHANGES;
      },
    });
    await agent?.start();
    await settle();
    slow = true;
    const before = calls.heartbeat;
    for (let i = 0; i < 10; i++) {
      agent?.reportSoon();
      clock.advance(200);
      await settle();
    }
    expect(calls.heartbeat - before).toBe(1);
    answers.shift()?.();
    await settle();
    clock.advance(200);
    await settle();
    expect(calls.heartbeat - before).toBe(2);
    slow = false;
    answers.shift()?.();
    await settle();
    clock.advance(1_000);
    await settle();
    expect(calls.heartbeat - before).toBe(2);
  });
});

describe('a session whose lease expires while the process is suspended', () => {
  it.each([
    ['is stopped when heartbeats could renew its lease until then', 0, 'lease_lost'],
    ['continues when the server had not answered several heartbeats before', 5_000, null],
  ])('%s', async (_, unansweredMs, stopReason) => {
    const sessions: Attempt[] = [];
    start(leasing(), {
      runSession: (attempt: Attempt) => {
        sessions.push(attempt);
        return untilAborted(attempt.signal).catch(() => null);
      },
    });
    await agent?.start();
    for (let i = 0; i < 50 && sessions.length === 0; i++) await settle();
    clock.advance(unansweredMs);
    clock.suspend(70_000);
    clock.advance(500);
    expect(sessions.map((attempt) => attempt.stopReason)).toEqual([stopReason]);
  });
});

describe('the logs and spans of a session', () => {
  it('show that only a partial result was delivered, and its number of completions', async () => {
    const lines = new PassThrough();
    const { released } = start(
      {
        ...leasing(),
        deliverResult: async () => {
          throw new FloeError('stale_epoch', 'a newer epoch owns the session');
        },
      },
      { log: createLogger('test', 'info', lines), runSession: finishedResult },
    );
    await agent?.start();
    for (let i = 0; i < 20 && released.length === 0; i++) await settle();
    const logged = linesOf(lines).filter(({ completions }) => completions !== undefined);
    expect(logged).toMatchObject([{ msg: 'partial result delivered', session_id: 'ses_1', completions: 2 }]);
  });

  it('are one line per status with the ids of the attempt, and one span', async () => {
    const lines = new PassThrough();
    const spans: FinishedSpan[] = [];
    start(leasing(), {
      log: createLogger('test', 'info', lines).child({ node_id: 'node' }),
      tracer: recordingTracer(clock, (span) => spans.push(span)),
      runSession: async (attempt) => {
        attempt.enter('INIT');
        attempt.recordCalls(1, 10, { role: 'assistant', content: 'Hello.' });
        attempt.enter('POSTRUN');
        attempt.stop('cancelled');
        return null;
      },
    });
    await agent?.start();
    for (let i = 0; i < 50 && spans.length === 0; i++) await settle();
    const of = { node_id: 'node', task_id: 'tsk_1', session_id: 'ses_1', attempt: 1, epoch: 1 };
    expect(linesOf(lines)).toMatchObject([
      { msg: 'node registered', node_id: 'node' },
      { ...of, msg: 'session moved', status: 'LEASED' },
      { ...of, msg: 'session moved', status: 'INIT' },
      { ...of, msg: 'session moved', status: 'POSTRUN' },
      { ...of, msg: 'session ended without a result', reason: 'cancelled' },
    ]);
    expect(spans).toMatchObject([{ name: 'session_attempt', attributes: { ...of, outcome: 'cancelled' } }]);
  });
});
