import type { DeliveredResult, NodeApi } from '@floe-rl/client';
import type { Clock } from '@floe-rl/core';
import { type Lease, leaseSchema } from '@floe-rl/core/schema';
import { createGatewayMetrics, silentLogger } from '@floe-rl/observe';
import { enginePoolsOf } from '../../../../capture/src/engines/pool/managed-engine-pools.ts';
import { NodeAgent, type NodeAgentDeps } from '../../../src/gateway/node/node-agent.ts';
import { NodeEngines } from '../../../src/gateway/node/node-engines.ts';
import { StagePools } from '../../../src/gateway/node/stage-pools.ts';
import { runSession } from '../../../src/gateway/session/session-runner.ts';
import { bench, untilAborted } from '../session-bench.ts';

export const LEASE = leaseSchema.parse({
  session_id: 'ses_1',
  task_id: 'tsk_1',
  sample_index: 0,
  attempt: 1,
  epoch: 1,
  lease_seconds: 60,
  queued_ms: 0,
  task: { instruction: 'x', agent: { harness: 'shell', custom_shell: 'true' } },
});

/** A heartbeat reply that requires no action by the node. */
export const NO_CHANGES = { stop: [], draining: false, engines: null };

/** Number of requests that the fake server received, by kind. */
type Calls = { register: number; lease: number; heartbeat: number; deliver: number; partial: number };

/** Returns the `lease` method of a fake server. Its first call returns one lease; all later calls wait until they are aborted. */
export function leasing(lease: Lease = LEASE): Pick<NodeApi, 'lease'> {
  let leased = false;
  return {
    lease: async (_, signal) => {
      if (leased) return untilAborted(signal as AbortSignal);
      leased = true;
      return [lease];
    },
  };
}

/** The result of one session, which was run before the tests. It has the session id of {@link LEASE}. */
const RESULT = await resultOfSession();

/**
 * Returns the result of a session with two completions and the reward 1. The session was run before the tests, because a test that waits for
 * a number of event loop turns could end before the session does.
 */
export async function finishedResult(): Promise<DeliveredResult> {
  return { ...RESULT, summary: { ...RESULT.summary, completion_count: 2, reward: 1 } };
}

async function resultOfSession(): Promise<DeliveredResult> {
  const { attempt, deps } = bench();
  const result = await runSession(attempt, deps);
  if (result === null) throw new Error('the bench session has no result');
  return result;
}

export type NodeBench = {
  readonly agent: NodeAgent;
  readonly calls: Calls;
  /** Ids of the sessions whose records may be removed. */
  readonly released: string[];
};

/**
 * Creates the agent of a node that is not started yet, with a fake of the rollout server. `api` replaces some methods of the fake, which
 * otherwise grants no leases and accepts everything. `deps` replaces some of the agent's other parts.
 */
export function nodeBench(
  api: Partial<NodeApi>,
  { clock, ...deps }: Partial<NodeAgentDeps> & { readonly clock: Clock },
): NodeBench {
  const calls: Calls = { register: 0, lease: 0, heartbeat: 0, deliver: 0, partial: 0 };
  const released: string[] = [];
  const counted = <A extends unknown[], R>(name: keyof Calls, call: (...args: A) => Promise<R>) => {
    return (...args: A): Promise<R> => {
      calls[name]++;
      // The fake server replies only in the next turn of the event loop, so that other callbacks run before each reply.
      return new Promise((resolve) => setImmediate(resolve)).then(() => call(...args));
    };
  };
  const never = (_: unknown, signal?: AbortSignal): Promise<never> => untilAborted(signal as AbortSignal);
  const quiet = async (beat: { wait_seconds: number }, signal?: AbortSignal) =>
    beat.wait_seconds === 0 ? NO_CHANGES : never(beat, signal);
  const fake = {
    nodeId: 'node',
    register: counted('register', api.register ?? (async () => ({}) as never)),
    lease: counted('lease', api.lease ?? never),
    heartbeat: counted('heartbeat', api.heartbeat ?? quiet),
    deliverResult: counted('deliver', api.deliverResult ?? (async () => ({}) as never)),
    deliverPartial: counted('partial', api.deliverPartial ?? (async () => ({}) as never)),
  };
  const agent = new NodeAgent({
    api: fake as unknown as NodeApi,
    registration: {
      host: null,
      dispatch_policy: 'pipeline',
      gateway_url: null,
      max_init_workers: 1,
      ready_size: 1,
      max_run_workers: 1,
      max_postrun_workers: 1,
      memory_mb: null,
    },
    clock,
    log: silentLogger,
    metrics: createGatewayMetrics(),
    pools: new StagePools({ init: 1, ready: 1, run: 1, postrun: 1 }),
    engines: new NodeEngines({ pool: enginePoolsOf([], { clock }), own: [], log: silentLogger, onChange: () => {} }),
    leaseWaitSeconds: 1,
    heartbeatSeconds: 1,
    runSession: async () => null,
    onDelivered: (lease) => void released.push(lease.session_id),
    ...deps,
  });
  return { agent, calls, released };
}
