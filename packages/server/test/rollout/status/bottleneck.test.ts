import type { EngineInfo, NodeInfo, NodeStageMetrics } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { countEngines } from '../../../src/rollout/engines/directory.ts';
import { StageMeans } from '../../../src/rollout/sessions/stage-means.ts';
import { bottleneckOf, type NodeFacts, poolHints, type ServiceFacts } from '../../../src/rollout/status/bottleneck.ts';
import { METRICS, REGISTRATION, summaryOf } from '../workbench.ts';

const engine = (fields: Partial<EngineInfo> = {}): EngineInfo =>
  ({ engine_id: 'e1', healthy: true, inflight: 0, max_concurrency: 8, ...fields }) as EngineInfo;

const reported = (...info: EngineInfo[]): NonNullable<NodeFacts['engines']> => ({
  revision: 0,
  heard: 0,
  engines: countEngines(info),
  problems: [],
  unpaused: [],
});

function node(metrics: Partial<NodeStageMetrics> = {}, fields: Partial<NodeFacts> = {}): NodeFacts {
  return {
    ...REGISTRATION,
    node_id: 'n1',
    healthy: true,
    draining: false,
    refuses: null,
    leased_memory_mb: 0,
    metrics: { ...METRICS, ...metrics },
    engines: reported(engine()),
    ...fields,
  };
}

/** Creates the input of `bottleneckOf` for a test. By default 9 sessions wait and one node has free capacity; `fields` overrides this. */
function facts(fields: Partial<ServiceFacts> = {}): ServiceFacts {
  return {
    storeFailure: null,
    queued: 9,
    live: 4,
    leastQueuedMemoryMb: 100,
    waiting: [{ trainer: 'default', heldBack: null }],
    nodes: [node()],
    enginesPaused: false,
    undeliveredCallbacks: 0,
    ...fields,
  };
}

const BUSY_RUN = { run_inflight: 4, ready_depth: 2, init_inflight: 4 };

describe('the bottleneck', () => {
  const cases: [string, Partial<ServiceFacts>, string | null, RegExp][] = [
    ['nothing while nodes have room', {}, null, /./],
    ['nothing when no work is there', { queued: 0, live: 0 }, null, /./],
    [
      'the store when it refuses, whatever else there is',
      { storeFailure: 'disk is full', nodes: [] },
      'store',
      /disk is full/,
    ],
    ['missing nodes', { nodes: [] }, 'nodes', /9 sessions wait and no node is registered/],
    [
      'nodes that are silent or drain',
      { nodes: [node({}, { healthy: false }), node({}, { draining: true })] },
      'nodes',
      /of 2 nodes 1 are draining/,
    ],
    [
      'memory that running sessions may use',
      { nodes: [node({}, { memory_mb: 500, leased_memory_mb: 401 }), node({}, { memory_mb: 90 })] },
      'memory',
      /each of the 9 queued sessions needs at least 100 MiB of memory, and no node has more than 99 MiB left/,
    ],
    [
      'nodes that are too small',
      { nodes: [node({}, { memory_mb: 50 }), node({}, { memory_mb: 90 })] },
      'memory',
      /the largest node has 90 MiB for sessions/,
    ],
    [
      'nothing while one node has memory',
      { nodes: [node({}, { memory_mb: 100 }), node({}, { memory_mb: 1 })] },
      null,
      /./,
    ],
    ['paused engines', { enginesPaused: true, queued: 0 }, 'engines', /paused/],
    [
      'nodes that take nothing for now',
      { nodes: [node({}, { refuses: 'its disk is full' }), node({}, { healthy: false })] },
      'nodes',
      /node n1 accepts none: its disk is full/,
    ],
    ['no engine at all', { nodes: [node({}, { engines: reported() })] }, 'engines', /no node has an engine/],
    [
      'engines of which none answers',
      { nodes: [node(BUSY_RUN, { engines: reported(engine({ healthy: false })) })] },
      'engines',
      /none of the 1 engines responds/,
    ],
    [
      'engines that take no further calls',
      { nodes: [node(BUSY_RUN, { engines: reported(engine({ inflight: 8 })) })] },
      'engines',
      /max_concurrency/,
    ],
    ['nothing of the engines that a node has not reported yet', { nodes: [node({}, { engines: null })] }, null, /./],
    ['the RUN pool', { nodes: [node(BUSY_RUN)] }, 'run_pool', /all 4 RUN workers are busy and 15 sessions/],
    ['the INIT pool', { nodes: [node({ init_inflight: 4, run_inflight: 1 })] }, 'init_pool', /all 4 INIT workers/],
    [
      'the POSTRUN pool, though RUN is full before it',
      { nodes: [node({ ...BUSY_RUN, postrun_inflight: 2, postrun_queue_depth: 2 })] },
      'postrun_pool',
      /2 sessions have run/,
    ],
    [
      'a trainer that does not collect, when nobody else waits',
      { waiting: [{ trainer: 'slow', heldBack: 'it has 5 uncollected_results' }], nodes: [node(BUSY_RUN)] },
      'trainer',
      /trainer slow is held back: it has 5/,
    ],
    [
      'not the trainer that does not collect while another one waits',
      {
        waiting: [
          { trainer: 'slow', heldBack: 'it has 5 uncollected_results' },
          { trainer: 'quick', heldBack: null },
        ],
        nodes: [node(BUSY_RUN)],
      },
      'run_pool',
      /RUN/,
    ],
    ['the pause after failures', { waiting: [] }, 'retry_backoff', /all 9 queued sessions/],
    [
      'callbacks that nobody acknowledges, when all else is done',
      { queued: 0, live: 0, undeliveredCallbacks: 3 },
      'callbacks',
      /3 callbacks/,
    ],
  ];
  it.each(cases)('is determined: %s', (_, fields, name, why) => {
    const verdict = bottleneckOf(facts(fields));
    expect(verdict?.name ?? null).toBe(name);
    if (verdict === null) return;
    expect(verdict.why).toMatch(why);
    expect(verdict.remedy).not.toBe('');
  });

  it('is determined over all nodes: a full node is no bottleneck while another has free capacity', () => {
    expect(bottleneckOf(facts({ nodes: [node(BUSY_RUN), node({ run_inflight: 2 })] }))).toBeNull();
  });
});

describe('pool hints', () => {
  const timing = { ...summaryOf(LEASE()).timing, init_ms: 30_000, running_ms: 60_000, postrun_ms: 15_000 };
  const means = (sessions: number, durations: Partial<typeof timing> = {}) => {
    const stages = new StageMeans();
    for (let i = 0; i < sessions; i++) stages.observe({ ...timing, ...durations });
    return stages.current();
  };
  const pools = (init: number, postrun: number): NodeInfo =>
    ({
      ...node(),
      dispatch_policy: 'pipeline',
      max_run_workers: 8,
      max_init_workers: init,
      max_postrun_workers: postrun,
    }) as unknown as NodeInfo;

  it('suggest as many workers as keep the RUN workers busy', () => {
    expect(poolHints([pools(3, 1)], means(50))).toMatchObject([
      { node_id: 'n1', setting: 'max_init_workers', value: 3, suggested: 4 },
      { node_id: 'n1', setting: 'max_postrun_workers', value: 1, suggested: 2 },
    ]);
    expect(poolHints([pools(4, 2)], means(50))).toEqual([]);
  });

  it('state their reason in seconds, with decimals only below ten seconds', () => {
    const [hint] = poolHints([pools(1, 4)], means(50, { init_ms: 2_500, running_ms: 10_000 }));
    expect(hint?.why).toMatch(/ 10 s per session need 2 workers in INIT, where a session takes 2\.50 s$/);
  });

  it('need enough sessions, and skip nodes that dispatch without a pipeline', () => {
    expect(poolHints([pools(1, 1)], means(3))).toEqual([]);
    expect(poolHints([{ ...pools(1, 1), dispatch_policy: 'bounded_batch' }], means(50))).toEqual([]);
  });

  it('follow sessions that become longer, and ignore those that were cut short', () => {
    const stages = new StageMeans();
    for (let i = 0; i < 100; i++) stages.observe(timing);
    stages.observe({ ...timing, running_ms: null });
    expect(stages.current()).toMatchObject({ samples: 100, running_ms: 60_000 });
    for (let i = 0; i < 500; i++) stages.observe({ ...timing, running_ms: 120_000 });
    expect(stages.current().running_ms).toBeGreaterThan(115_000);
  });
});

function LEASE() {
  return { session_id: 's', task_id: 't', sample_index: 0, attempt: 1, epoch: 1 };
}
