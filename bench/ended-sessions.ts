import { seededRandom, systemClock } from '@floe-rl/core';
import type { MeasureKind } from '@floe-rl/core/schema';
import type { Measure, NewFactRow, Store } from '#server/store/index';

/** Number of facts that one transaction adds. */
const BATCH = 2_000;
const SAMPLES = 8;
/** When the first of the ended sessions ends. They end one second apart, so that 100,000 of them end within 28 hours. */
export const FIRST_END_MS = Date.UTC(2026, 0, 1);

const random = seededRandom(1);

function factRow(i: number): NewFactRow {
  const fails = random() < 0.1;
  const turns = 1 + Math.floor(random() * 40);
  return {
    session_id: `ses_01jd${String(i).padStart(22, '0')}`,
    task_id: `task_01jd${String(Math.floor(i / SAMPLES)).padStart(22, '0')}`,
    sample_index: i % SAMPLES,
    trainer: i % 3 === 0 ? 'evaluation' : 'policy',
    harness: 'floe',
    agent: 'coder',
    source: `dataset-${Math.floor(i / SAMPLES) % 6}`,
    split: 'train',
    outcome: fails ? 'agent_timeout' : 'completed',
    unusable: fails ? 'agent_timeout' : null,
    reward: fails ? null : Math.floor(random() * 100) / 99,
    version: String(Math.floor(i / 1024)),
    first_version: String(Math.floor(i / 1024)),
    dialect: 'openai_chat',
    engine: 'vllm',
    node_id: `node-${i % 12}`,
    attempt: 1,
    turns,
    completions: turns,
    sampled_tokens: turns * 220,
    trained_tokens: turns * 200,
    traces: 1,
    queued_ms: random() * 60_000,
    init_ms: 900,
    ready_ms: 20,
    running_ms: random() * 300_000,
    postrun_ms: 400,
    total_ms: random() * 310_000,
    engine_ms: turns * 2_500,
    sandbox_ms: random() * 310_000,
    ended_ms: FIRST_END_MS + i * 1000,
    measures: measuresFor(turns),
  };
}

const TOOLS = ['bash', 'edit', 'search'];

/** Returns the measures of a session with some turns: links, drift, reasons for rendering, tools with several times, parts of the reward. */
function measuresFor(turns: number): Measure[] {
  const of = (kind: MeasureKind, name: string, fields: Partial<Measure>): Measure => ({
    ...{ kind, name, bin: -1, count: 0, failures: 0, sum: 0, square_sum: 0 },
    ...fields,
  });
  return [
    of('link', 'root', { count: 1 }),
    of('link', 'exact', { count: turns }),
    of('rendered', 'first', { count: 1 }),
    of('rendered', 'spliced', { count: turns }),
    of('excluded', 'undelivered', { count: 20 * turns }),
    of('reward', 'tests', { count: 1, sum: 0.5, square_sum: 0.25 }),
    of('reward', 'format', { count: 1, sum: 1, square_sum: 1 }),
    ...TOOLS.flatMap((name) => [
      of('tool', name, { failures: Math.floor(random() * 2), sum: turns * 300 }),
      ...[0, 1, 2].map(() =>
        of('tool', name, { bin: 20 + Math.floor(random() * 20), count: 1 + Math.floor(turns / 3) }),
      ),
    ]),
  ];
}

/** Adds the facts of ended sessions. Adds all facts but the newest hundred to the totals. Returns the mean time of adding one fact in ms. */
export async function addEndedSessions(store: Store, sessions: number): Promise<number> {
  const startedMs = systemClock.monotonicMs();
  for (let from = 0; from < sessions; from += BATCH) {
    await store.transaction(async ({ facts }) => {
      for (let i = from; i < Math.min(sessions, from + BATCH); i++) await facts.add(factRow(i));
    });
  }
  const each = (systemClock.monotonicMs() - startedMs) / sessions;
  for (let left = sessions - 100; left > 0; )
    left -= await store.transaction(({ facts }) => facts.fold(Math.min(left, 5_000)));
  return each;
}
