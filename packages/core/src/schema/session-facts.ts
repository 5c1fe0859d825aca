import { z } from 'zod';
import { countSchema, idSchema, timestampSchema } from './identifiers.ts';
import { outcomeSchema, rewardSchema, unusableReasonSchema } from './session.ts';

const duration = z.number().nullable();

/** The fields of an ended session in lists and aggregates. Durations are `null` for a stage that the session did not reach. */
export const sessionFactsSchema = z.object({
  session_id: idSchema,
  task_id: idSchema,
  sample_index: countSchema,
  trainer: z.string(),
  harness: z.string(),
  agent: z.string().nullable().describe('agent that the harness `floe` ran; null for any other harness'),
  source: z.string().nullable().describe('`metadata.data_source` of the task'),
  split: z.string().nullable().describe('`metadata.split` of the task'),
  outcome: outcomeSchema,
  unusable: unusableReasonSchema.nullable().describe('why the sample cannot be trained on; null when it can'),
  reward: rewardSchema.nullable(),
  version: z.string().nullable().describe('policy version of the last sampled token; null when it is unknown'),
  first_version: z.string().nullable().describe('policy version of the first sampled token; null when it is unknown'),
  dialect: z
    .string()
    .nullable()
    .describe('dialect of the model calls; `several` for more than one; null without calls'),
  engine: z
    .string()
    .nullable()
    .describe(
      'kind of the engines; `several` for more than one; null without calls, and for an engine that was removed',
    ),
  node_id: z.string().nullable(),
  attempt: countSchema,
  turns: countSchema,
  completions: countSchema,
  sampled_tokens: z.int(),
  trained_tokens: z.int(),
  traces: countSchema,
  queued_ms: duration,
  init_ms: duration,
  ready_ms: duration,
  running_ms: duration,
  postrun_ms: duration,
  total_ms: duration.describe('time from the lease to the result; null for a session that reached no node'),
  engine_ms: z.number().nullable().describe('sum of the times that engines took; null when the node did not report it'),
  sandbox_ms: duration.describe('`total_ms` of a session with a sandbox; null for one without'),
  ended_at: timestampSchema,
  ended_ms: z.int().describe('Unix time at which the session ended, in milliseconds'),
});
export type SessionFacts = z.infer<typeof sessionFactsSchema>;

const nextPage = z.string().nullable().describe('`after` of the next page; null on the last page');

/** A page of ended sessions. */
export const sessionFactsPageSchema = z.object({
  sessions: z.array(sessionFactsSchema),
  next: nextPage,
  total: z
    .int()
    .nullable()
    .describe('number of sessions that match; null on later pages, and when counting them would take long'),
});
export type SessionFactsPage = z.infer<typeof sessionFactsPageSchema>;

/** The fields that sums of sessions can be grouped by. `hour` is the beginning of the hour in which the session ended. */
export const sessionGroupingSchema = z.enum([
  'hour',
  'trainer',
  'harness',
  'agent',
  'source',
  'split',
  'outcome',
  'unusable',
  'version',
  'dialect',
  'engine',
  'node',
  'task',
]);
export type SessionGrouping = z.infer<typeof sessionGroupingSchema>;

const mean = z.number().nullable();

/** Sums over the ended sessions that have the same values in the fields of `by`. A mean over no session is `null`. */
export const sessionTotalsSchema = z.object({
  by: z.partialRecord(sessionGroupingSchema, z.string().nullable()),
  sessions: z.int(),
  usable: z.int().describe('sessions that can be trained on'),
  rewards: z.int().describe('sessions that have a reward'),
  reward_mean: mean,
  reward_deviation: mean.describe('standard deviation of the rewards (population)'),
  turns_mean: mean,
  sampled_tokens: z.int(),
  trained_tokens: z.int(),
  seconds_mean: mean.describe('mean time from the lease to the result'),
  queued_seconds_mean: mean,
  engine_seconds: z.number().describe('sum of the times that engines took for replies'),
  sandbox_seconds: z.number().describe('sum of the times from the lease to the result of sessions with a sandbox'),
});
export type SessionTotals = z.infer<typeof sessionTotalsSchema>;

export const sessionTotalsReplySchema = z.object({
  groups: z.array(sessionTotalsSchema).describe('ordered by the fields of `by`, null last'),
});

/**
 * The kinds of measures. Measures of a kind have names. The kinds are links between model calls and drift, rendered prompts, tokens that are
 * not trained, tools, hints, parts of rewards, and costs.
 */
export const measureKindSchema = z.enum(['link', 'drift', 'rendered', 'excluded', 'tool', 'hint', 'reward', 'cost']);
export type MeasureKind = z.infer<typeof measureKindSchema>;

/** Sums of a measure over the ended sessions that have the same values in the fields of `by`. */
export const sessionMeasureSchema = z.object({
  by: z.partialRecord(sessionGroupingSchema, z.string().nullable()),
  of: measureKindSchema,
  name: z.string().describe('what is measured, such as a tool, a cause of drift, or a part of the reward'),
  count: z
    .int()
    .describe(
      'number of links, prompts, tokens, calls or hints; of a part of the reward, the sessions that have it; of a cost, its amount in the unit of its name',
    ),
  failures: z.int().describe('calls that failed; sessions in which the part of the reward could not be computed'),
  mean: mean.describe('tool: seconds of the answered calls; reward: value of the part; null for others'),
  deviation: mean.describe('reward: standard deviation (population); null for others'),
  p50: mean.describe('tool: median of the seconds of the answered calls, exact to 9 %; null for others'),
  p95: mean.describe('tool: the 95th percentile of these'),
});
export type SessionMeasure = z.infer<typeof sessionMeasureSchema>;

export const sessionMeasuresReplySchema = z.object({
  newest: z
    .int()
    .nullable()
    .describe('number of the newest sessions that were summed, when more match than are read; null when all were'),
  measures: z.array(sessionMeasureSchema).describe('ordered by the fields of `by`, null last, then by kind and name'),
});
export type SessionMeasures = z.infer<typeof sessionMeasuresReplySchema>;

/** The values that a histogram can show. */
export const histogramFieldSchema = z.enum(['reward', 'turns', 'tokens', 'seconds']);
export type HistogramField = z.infer<typeof histogramFieldSchema>;

/** How the values of ended sessions are distributed over intervals of equal width. */
export const sessionHistogramSchema = z.object({
  of: histogramFieldSchema,
  bins: z.array(
    z.object({
      from: z.number(),
      to: z.number().describe('first value of the next interval; the last interval includes it'),
      sessions: z.int(),
    }),
  ),
  without: z.int().describe('sessions that match and have no such value'),
});
export type SessionHistogram = z.infer<typeof sessionHistogramSchema>;

/** The ended sessions of one task that match a filter. */
export const groupFactsSchema = z.object({
  task_id: idSchema,
  trainer: z.string(),
  harness: z.string(),
  source: z.string().nullable(),
  sessions: z.int(),
  usable: z.int(),
  rewards: z.int(),
  reward_mean: mean,
  reward_min: mean,
  reward_max: mean,
  is_degenerate: z
    .boolean()
    .describe('whether all rewards of usable sessions are equal, so that the group teaches nothing; false without any'),
  ended_at: timestampSchema.describe('when its newest session ended'),
});
export type GroupFacts = z.infer<typeof groupFactsSchema>;

/** A page of groups. The group with the newest session is first. */
export const groupFactsPageSchema = z.object({ groups: z.array(groupFactsSchema), next: nextPage });
export type GroupFactsPage = z.infer<typeof groupFactsPageSchema>;
