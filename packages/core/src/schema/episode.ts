import { z } from 'zod';

/**
 * How an episode ended. `finished`: the agent or the environment ended it. `truncated`: a limit ended it. `failed`: the agent gave up, or
 * could not work, and has no reward. `timeout`: its time is used up. `no_data`: the environment has no episode for the seed.
 */
export const episodeStatusSchema = z.enum(['finished', 'truncated', 'failed', 'timeout', 'no_data']);
export type EpisodeStatus = z.infer<typeof episodeStatusSchema>;

/** How the episode of a floe agent ended, and what was counted in it. */
export const episodeReportSchema = z.object({
  status: episodeStatusSchema,
  score: z.number().nullable().describe('sum of the rewards of the episode; null when the agent gave none'),
  seat_scores: z.record(z.string(), z.number()).default({}).describe('score of each player, in an episode of several'),
  reason: z.string().describe('why the episode ended'),
  metrics: z.record(z.string(), z.number()).describe('counts by name, such as `calls.bash` and `broken.bad_json`'),
});
export type EpisodeReport = z.infer<typeof episodeReportSchema>;

/** Environment in which a floe agent acts. */
export const taskEnvironmentSchema = z.strictObject({
  type: z.string().min(1).describe('name of the environment'),
  config: z.record(z.string(), z.unknown()).default({}).describe('settings of the environment, which validates them'),
  seed: z.int().min(0).default(0).describe('seed of the episode, the same for all samples of the task'),
});
export type TaskEnvironment = z.infer<typeof taskEnvironmentSchema>;
