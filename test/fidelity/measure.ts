import type { GraphOptions } from '@floe-rl/capture';
import { type Audit, type SessionResult, trajectorySchema } from '@floe-rl/core/schema';
import { checkAgainstLedger, type LedgerCheckOptions } from '@floe-rl/sim';
import { buildTrajectory } from '#capture/tokens/trajectory';
import type { GoldenSession } from '../golden/session.ts';

/** Counts over several sessions. Their traces were built with the same builder configuration. */
export type Measure = {
  sessions: number;
  completions: number;
  traces: number;
  /** Number of tokens that the engine sampled for these sessions, whether or not a client received them. */
  sampled: number;
  trained: number;
  /** Number of trained tokens that follow exactly the context in which they were sampled. */
  exact: number;
  /** Number of trained tokens with an unknown policy version, which some engine modes allow. */
  unknown_version: number;
  /**
   * Number of tokens in the prompts of trained replies whose KV cache entry was computed by another version of the weights than the version
   * recorded for the reply.
   */
  stale_context: number;
  mismatches: number;
  trained_twice: number;
  /** Number of tokens that are neither trained, nor excluded with a reason, nor part of a refused or aborted reply. */
  unaccounted: number;
};

export function emptyMeasure(): Measure {
  return {
    sessions: 0,
    completions: 0,
    traces: 0,
    sampled: 0,
    trained: 0,
    exact: 0,
    unknown_version: 0,
    stale_context: 0,
    mismatches: 0,
    trained_twice: 0,
    unaccounted: 0,
  };
}

export function add(into: Measure, more: Measure): void {
  for (const key of Object.keys(into) as (keyof Measure)[]) into[key] += more[key];
}

/**
 * Builds the trajectory of a closed session and compares it with the ledger, the simulated engine's own list of sampled tokens. Returns the
 * counts of the session and descriptions of the differences.
 */
export function measure(
  session: GoldenSession,
  graphOptions: GraphOptions,
  config: Record<string, unknown>,
  options: LedgerCheckOptions = {},
): { readonly measure: Measure; readonly audit: Audit; readonly problems: readonly string[] } {
  const completions = session.session.completions();
  const { json, audit } = buildTrajectory({
    spec: { strategy: 'prefix_merging', config },
    completions,
    status: 'COMPLETED',
    reward: 1,
    error: null,
    metadata: {},
    graphOptions,
  });
  const trajectory = trajectorySchema.parse(JSON.parse(json.toString()));
  const entries = session.ledger();
  const result = { session_id: session.session.sessionId, trajectory } as SessionResult;
  const report = checkAgainstLedger([result], entries, 'processed', options);
  const recorded = new Set(completions.map(({ completionId }) => completionId));
  const lost = entries.filter((entry) => !recorded.has(entry.request_id));
  const unexplained = lost.filter((entry) => entry.faults.length === 0 && entry.aborted_at === null);
  const sum = (list: typeof entries): number => list.reduce((total, entry) => total + entry.response_ids.length, 0);
  const excluded = Object.values(audit.tokens.excluded).reduce((total, count) => total + count, 0);
  const difference = sum(entries) - sum(lost) - audit.tokens.trained - excluded;
  return {
    audit,
    problems: [
      ...report.mismatches.map(({ what, completion_id, detail }) => `${what}: ${completion_id}: ${detail}`),
      ...unexplained.map((entry) => `${entry.request_id} was sampled and recorded nowhere`),
      ...(difference === 0 ? [] : [`${difference} tokens of recorded replies are neither trained nor excluded`]),
    ],
    measure: {
      sessions: 1,
      completions: completions.length,
      traces: trajectory.traces.length,
      sampled: sum(entries),
      trained: audit.tokens.trained,
      exact: report.exact_context_tokens,
      unknown_version: report.unknown_version_tokens,
      stale_context: report.stale_context_tokens,
      mismatches: report.mismatches.length,
      trained_twice: report.mismatches.filter(({ what }) => what === 'trained twice').length,
      unaccounted: sum(unexplained) + Math.abs(difference),
    },
  };
}
