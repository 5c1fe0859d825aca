import { z } from 'zod';
import { metadataSchema } from './identifiers.ts';

/** Largest number of a group, and of an episode: seeds stay integers that every environment accepts. */
const MAX_GROUPS = 1_000_000;

const environmentGroupsSchema = z.strictObject({
  tag: z.string().min(1).max(256).describe('name of the environment with its settings, as the rows give it'),
  groups: z.int().min(1).max(MAX_GROUPS).describe('number of groups that play it at the same time'),
  type: z.string().min(1).describe('name of the environment'),
  config: metadataSchema.default({}).describe('settings of the environment, which validates them'),
  options: metadataSchema.default({}).describe('settings of the agent, which validates them'),
  instruction: z.string().default('').describe('text for the start of the conversation'),
});

/** Episodes of environments as rows: each row is one episode of one group, and depends on nothing but its number. */
export const environmentSourceSchema = z.strictObject({
  kind: z.literal('environments'),
  environments: z.array(environmentGroupsSchema).min(1).max(1_000),
  seed: z
    .int()
    .min(0)
    .max(2 ** 31 - 1)
    .default(0)
    .describe('the seed of an episode is this seed, plus the seed of its group, plus its number, modulo 2^31'),
  episodes: z
    .int()
    .min(1)
    .max(MAX_GROUPS)
    .nullable()
    .default(null)
    .describe('number of episodes that each group plays; null: without end'),
});
export type EnvironmentSource = z.infer<typeof environmentSourceSchema>;
export type EnvironmentSourceInput = z.input<typeof environmentSourceSchema>;
