// Plays clients that burden a server, so that the bench can measure the effect on other clients. The only argument is JSON of
// BadClientsArguments.
import { NodeApi } from '@floe-rl/client';
import { FloeError, newId, systemClock } from '@floe-rl/core';
import { sessionSummary } from '@floe-rl/core/protocol';
import { inParallel, serveBench } from '../child.ts';
import type { BadClientsArguments } from './neighbours.ts';
import { pools } from './rates.ts';

const { url, nodes: count } = JSON.parse(process.argv[2] ?? '') as BadClientsArguments;

const METRICS = { init_inflight: 0, ready_depth: 0, run_inflight: 0, postrun_queue_depth: 0, postrun_inflight: 0 };
const RETRY_SECONDS = 60;
/** Slots that the greedy node requests with each call. */
const MANY_SLOTS = 1_000_000;
/** Time in seconds that a restarting node waits for a session. */
const WAIT_SECONDS = 1;

const nodes = Array.from(
  { length: count },
  (_, i) =>
    new NodeApi({
      ...{ url, retrySeconds: RETRY_SECONDS, clock: systemClock },
      ...{ nodeId: `restarting-${i}`, instance: newId('proc', systemClock) },
    }),
);

const sizes = pools(4);

function register(api: NodeApi): Promise<unknown> {
  return api.register({
    ...{ host: null, dispatch_policy: 'pipeline', gateway_url: null, memory_mb: null },
    ...{ max_init_workers: sizes.init, ready_size: sizes.ready },
    ...{ max_run_workers: sizes.run, max_postrun_workers: sizes.postrun },
  });
}

/** Registers a node, reports that it has no session, and asks for one. Ends the session that it gets at once, as if it had run. */
async function restart(api: NodeApi): Promise<void> {
  await register(api);
  await api.heartbeat({ metrics: METRICS, refuses: null, sessions: [], engines: null, wait_seconds: 0 });
  for (const lease of await api.lease({ slots: 1, wait_seconds: WAIT_SECONDS })) {
    const fields = { reward: 1, trace_count: 0, trainable_tokens: 0, completion_count: 0, node_id: api.nodeId };
    const summary = sessionSummary(lease, 'completed', fields);
    await api.deliverResult({ summary, trajectory: null, completions: null, artifacts: null });
  }
}

let isGreedy = false;
let greedy: Promise<number> = Promise.resolve(0);

/** Requests a million slots again and again. Resolves to the number of refusals. */
async function requestManySlots(api: NodeApi): Promise<number> {
  let refusals = 0;
  while (isGreedy) {
    try {
      await api.lease({ slots: MANY_SLOTS, wait_seconds: 0 });
      throw new Error('a lease request for a million slots was accepted');
    } catch (thrown) {
      if (!FloeError.is(thrown) || thrown.code !== 'schema_violation') throw thrown;
      refusals++;
    }
  }
  return refusals;
}

serveBench(
  {},
  {
    async restart() {
      await inParallel(count, count, (i) => restart(nodes[i] as NodeApi));
      return {};
    },
    async startGreedy() {
      const [api] = nodes as [NodeApi];
      await register(api);
      isGreedy = true;
      greedy = requestManySlots(api);
      return {};
    },
    async stopGreedy() {
      isGreedy = false;
      return { refusals: await greedy };
    },
  },
  async () => {
    await Promise.all(nodes.map((api) => api.close()));
  },
);
