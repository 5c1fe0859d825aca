import type { Outcome, UnusableReason } from '@floe-rl/core/schema';
import type { Query } from './connection.ts';

/** One or several values. */
type Values<Value> = Value | readonly Value[];

/**
 * Selects ended sessions. All given fields must hold. `null` among the values of a field selects sessions without a value. Limits are
 * inclusive, except `until`.
 */
export type SessionFilter = {
  readonly task?: Values<string>;
  readonly trainer?: Values<string>;
  readonly harness?: Values<string>;
  /** Agents of the harness `floe`. */
  readonly agent?: Values<string | null>;
  /** Values of `metadata.data_source`. */
  readonly source?: Values<string | null>;
  /** Values of `metadata.split`. */
  readonly split?: Values<string | null>;
  readonly outcome?: Values<Outcome>;
  /** Why the samples cannot be trained on. */
  readonly unusable?: Values<UnusableReason | null>;
  /** Policy versions of the last sampled token. */
  readonly version?: Values<string | null>;
  /** Dialects of the model calls; `several` for more than one. */
  readonly dialect?: Values<string | null>;
  /** Kinds of engines; `several` for more than one. */
  readonly engine?: Values<string | null>;
  readonly node?: Values<string | null>;
  /** Measures as `kind:name`, such as `drift:rewritten`. A session matches if it has at least one of them. */
  readonly measure?: Values<string>;
  /** Words that the messages have, all of them; words between double quotes follow each other. */
  readonly text?: string;
  /** Whether the samples can be trained on. */
  readonly usable?: boolean;
  readonly minReward?: number;
  readonly maxReward?: number;
  readonly minTurns?: number;
  readonly maxTurns?: number;
  readonly minTokens?: number;
  readonly maxTokens?: number;
  readonly minSeconds?: number;
  readonly maxSeconds?: number;
  /** When the sessions ended, or later. */
  readonly since?: Date;
  /** Before when the sessions ended. */
  readonly until?: Date;
};

/** Returns the query parameters of a filter. */
export function filterQuery(filter: SessionFilter): Query {
  return {
    task: listed(filter.task),
    trainer: listed(filter.trainer),
    harness: listed(filter.harness),
    agent: listed(filter.agent),
    source: listed(filter.source),
    split: listed(filter.split),
    outcome: listed(filter.outcome),
    unusable: listed(filter.unusable),
    version: listed(filter.version),
    dialect: listed(filter.dialect),
    engine: listed(filter.engine),
    node: listed(filter.node),
    measure: listed(filter.measure),
    text: filter.text,
    usable: filter.usable,
    min_reward: filter.minReward,
    max_reward: filter.maxReward,
    min_turns: filter.minTurns,
    max_turns: filter.maxTurns,
    min_tokens: filter.minTokens,
    max_tokens: filter.maxTokens,
    min_seconds: filter.minSeconds,
    max_seconds: filter.maxSeconds,
    since: filter.since?.toISOString(),
    until: filter.until?.toISOString(),
  };
}

function listed(values: Values<string | null> | undefined): string | undefined {
  if (values === undefined) return undefined;
  const list = Array.isArray(values) ? (values as readonly (string | null)[]) : [values as string | null];
  return list.map((value) => value ?? 'none').join(',');
}
