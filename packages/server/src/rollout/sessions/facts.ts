import { joinedWithin, wordsOf } from '@floe-rl/core/protocol';
import type { SessionSummary, TaskRequest } from '@floe-rl/core/schema';
import type { NewFactRow, SessionRow } from '../../store/index.ts';
import type { RolloutConfig } from '../config.ts';
import type { RolloutContext } from '../context.ts';
import { measuresOf, storedReward } from './measures.ts';

/** Maximum number of characters in a value of a column that facts are grouped by, when a task or an engine chose the text. */
const MAX_LABEL_CHARACTERS = 256;

/**
 * When this many facts wait, they are added to the totals together. Queries of totals read at most about this many facts in addition. If each
 * fact were added immediately, all deliveries would change the same rows.
 */
const FOLD_AT = 100;
/** Maximum number of facts that one transaction adds to the totals, so that other transactions do not wait for long. */
const FOLD_BATCH = 5_000;

type EndedSession = Pick<SessionRow, 'trainer' | 'turns' | 'sampled_tokens'>;

/** Returns the facts of a session that ends at the Unix time `endedMs`. `row` has the final turns and tokens. */
export function factsOf(row: EndedSession, summary: SessionSummary, task: TaskRequest, endedMs: number): NewFactRow {
  const { timing, calls, policy_versions: versions } = summary;
  // A session that reached no node has a total of 0.
  const totalMs = timing.total_ms === 0 ? null : timing.total_ms;
  const { agent: name } = task.agent.settings;
  return {
    session_id: summary.session_id,
    task_id: summary.task_id,
    sample_index: summary.sample_index,
    trainer: row.trainer,
    harness: task.agent.harness,
    agent: task.agent.harness === 'floe' ? labelOf(name) : null,
    source: labelOf(task.metadata.data_source),
    split: labelOf(task.metadata.split),
    outcome: summary.outcome,
    unusable: summary.unusable,
    reward: summary.reward === null ? null : storedReward(summary.reward),
    version: labelOf(versions?.last),
    first_version: labelOf(versions?.first),
    dialect: onlyOf(calls?.dialects ?? []),
    engine: onlyOf(calls?.engines ?? []),
    node_id: summary.node_id,
    attempt: summary.attempt,
    turns: row.turns,
    completions: summary.completion_count,
    sampled_tokens: row.sampled_tokens,
    trained_tokens: summary.trainable_tokens,
    traces: summary.trace_count,
    queued_ms: timing.queued_ms,
    init_ms: timing.init_ms,
    ready_ms: timing.ready_ms,
    running_ms: timing.running_ms,
    postrun_ms: timing.postrun_ms,
    total_ms: totalMs,
    engine_ms: calls?.engine_ms ?? null,
    sandbox_ms: task.runtime?.backend === 'none' ? null : totalMs,
    ended_ms: Math.floor(endedMs),
    measures: measuresOf(summary),
  };
}

/** Returns the only value of a list; `several` for more than one, and `null` for none. */
function onlyOf(values: readonly string[]): string | null {
  return values.length > 1 ? 'several' : (values[0] ?? null);
}

/** Returns the words of a text that the configuration of a server lets it index. */
export function indexedWords({ search_kb: kb }: Pick<RolloutConfig, 'search_kb'>, text: string): string {
  return wordsOf(joinedWithin([text], kb * 1000));
}

/** Returns a text as a value that facts can be grouped by; `null` for an empty text and for values that are not text. */
function labelOf(value: unknown): string | null {
  if (typeof value !== 'string' || value === '') return null;
  // PostgreSQL stores no NUL in texts.
  return value.slice(0, MAX_LABEL_CHARACTERS).replaceAll('\0', '\u{fffd}');
}

/** Adds the facts that are not part of the totals yet to them, once there are many. Several servers on one store may do so concurrently. */
export async function foldFacts(context: RolloutContext): Promise<void> {
  for (;;) {
    if (context.closing.aborted) return;
    const waiting = await context.store.read((tables) => tables.facts.unfolded(FOLD_AT));
    if (waiting < FOLD_AT) return;
    await context.store.transaction((tables) => tables.facts.fold(FOLD_BATCH));
  }
}
