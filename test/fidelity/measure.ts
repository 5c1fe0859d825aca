import { type Audit, type SessionResult, trajectorySchema } from '../../src/schema/index.ts';
import { checkAgainstLedger, type LedgerCheckOptions } from '../../src/sim/index.ts';
import type { GraphOptions } from '../../src/tokens/graph.ts';
import { buildTrajectory } from '../../src/tokens/trajectory.ts';
import type { GoldenSession } from '../golden/session.ts';

/** Token counts over several sessions, whose traces were built with one configuration. */
export type Measure = {
  sessions: number;
  completions: number;
  traces: number;
  /** Tokens that the engine sampled for these sessions, whether or not a client received them. */
  sampled: number;
  trained: number;
  /** Number of trained tokens that follow exactly the context in which they were sampled. */
  exact: number;
  /** Trained tokens whose policy version is unknown, which some modes allow. */
  unknown_version: number;
  mismatches: number;
  trained_twice: number;
  /** Tokens that are neither trained, nor excluded with a reason, nor part of a refused or aborted reply. */
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
    mismatches: 0,
    trained_twice: 0,
    unaccounted: 0,
  };
}

export function add(into: Measure, more: Measure): void {
  for (const key of Object.keys(into) as (keyof Measure)[]) into[key] += more[key];
}

/**
 * Builds the trajectory of a closed session, compares it with the engine's ledger, and adds up the counts. Returns descriptions of the
 * first differences.
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
      mismatches: report.mismatches.length,
      trained_twice: report.mismatches.filter(({ what }) => what === 'trained twice').length,
      unaccounted: sum(unexplained) + Math.abs(difference),
    },
  };
}
