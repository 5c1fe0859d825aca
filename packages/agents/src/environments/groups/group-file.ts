import { fieldError, parseAs } from '@floe-rl/core';
import { type BatchStreamRequestInput, type EnvironmentSourceInput, metadataSchema } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { EnvironmentDefinition } from '../environment.ts';

/** The parts of a file of environment groups: what is trained on, and what is evaluated. */
export const SPLITS = ['train', 'val'] as const;
export type Split = (typeof SPLITS)[number];

const entrySchema = z.strictObject({
  type: z.string().min(1),
  config: metadataSchema.default({}),
  max_steps: z.int().min(1).optional(),
  max_tokens_per_step: z.int().min(1).optional(),
  options: metadataSchema.default({}),
  instruction: z.string().default(''),
});

const splitSchema = z.strictObject({
  num_env_groups: z.int().min(1),
  group_size: z.int().min(1).default(1),
  tags: z.array(z.string().min(1)).min(1),
  num_groups_partition: z.array(z.int().min(1)).optional(),
  seed: z.int().min(0).default(0),
  episodes: z.int().min(1).nullable().optional(),
  agent: z.string().min(1).default('gym'),
  tools: z.array(z.unknown()).optional(),
  hints: z.unknown().optional(),
});

/** A file of environment groups in floe's own form. */
export const groupFileSchema = z.strictObject({
  environments: z.record(z.string().min(1), entrySchema),
  train: splitSchema.optional(),
  val: splitSchema.optional(),
  task: metadataSchema.default({}),
});
export type GroupFile = z.infer<typeof groupFileSchema>;
export type GroupFileInput = z.input<typeof groupFileSchema>;

/**
 * Returns the batch stream of one split: a source that computes one row for each episode of each group, and a template of the task that plays
 * it. `train` is without end; `val` is an evaluation of one episode for each group. The fields of `given` replace the fields of the file.
 * Throws `schema_violation`, which names the field, for a file that does not fit together. `definitions` are environments that are known here.
 */
export function streamOfSplit(
  file: GroupFile,
  split: Split,
  given: Readonly<Record<string, unknown>>,
  definitions: readonly EnvironmentDefinition[],
): BatchStreamRequestInput {
  const section = file[split];
  if (section === undefined) throw fieldError(split, 'is missing: the file has no such part');
  const { group_size: samples, seed, agent, tools, hints } = section;
  const episodes = section.episodes === undefined ? (split === 'val' ? 1 : null) : section.episodes;
  const source: EnvironmentSourceInput = {
    kind: 'environments',
    environments: partitionOf(section, split).map(({ tag, groups }) => ({
      tag,
      groups,
      ...environmentOf(file, split, tag, agent, definitions),
    })),
    seed,
    episodes,
  };
  const settings = {
    agent,
    options: '{{row.options}}',
    ...(tools === undefined ? {} : { tools }),
    ...(hints === undefined ? {} : { hints }),
  };
  const { task: ownTask, ...ownFields } = given;
  const fields = { ...file.task, ...(ownTask as object | undefined) } as Record<string, unknown>;
  const task = {
    instruction: '{{row.instruction}}',
    num_samples: samples,
    runtime: { backend: 'none' },
    evaluator: { strategy: 'environment' },
    ...fields,
    agent: { harness: 'floe', settings, ...(fields.agent as object | undefined) },
    environment: '{{row.environment}}',
    metadata: {
      ...(fields.metadata as object | undefined),
      group: { tag: '{{row.tag}}', group: '{{row.group}}', episode: '{{row.episode}}' },
    },
  };
  return { ...(split === 'val' ? { purpose: 'evaluate' as const } : {}), ...ownFields, source, task };
}

type Section = NonNullable<GroupFile[Split]>;

/** Returns the number of groups of each tag. Without a partition, all tags have equally many. */
function partitionOf(section: Section, split: Split): { readonly tag: string; readonly groups: number }[] {
  const { num_env_groups: count, tags, num_groups_partition: partition } = section;
  if (new Set(tags).size < tags.length) throw fieldError(`${split}.tags`, 'names a tag twice');
  if (partition === undefined) {
    if (count % tags.length > 0) {
      const message = `${count} groups cannot be divided equally among ${tags.length} tags; give num_groups_partition`;
      throw fieldError(`${split}.num_env_groups`, message);
    }
    return tags.map((tag) => ({ tag, groups: count / tags.length }));
  }
  const path = `${split}.num_groups_partition`;
  if (partition.length !== tags.length) {
    throw fieldError(path, `has ${partition.length} numbers, but there are ${tags.length} tags`);
  }
  const sum = partition.reduce((total, groups) => total + groups, 0);
  if (sum !== count) throw fieldError(path, `adds up to ${sum}, but num_env_groups is ${count}`);
  return tags.map((tag, index) => ({ tag, groups: partition[index] ?? 0 }));
}

function environmentOf(
  { environments }: GroupFile,
  split: Split,
  tag: string,
  agent: string,
  definitions: readonly EnvironmentDefinition[],
) {
  const entry = Object.hasOwn(environments, tag) ? environments[tag] : undefined;
  if (entry === undefined) {
    const known = Object.keys(environments).join(', ') || 'none';
    throw fieldError(`${split}.tags`, `there is no environment ${tag}; environments has: ${known}`);
  }
  const { type, max_steps: maxSteps, max_tokens_per_step: maxTokens, options, instruction } = entry;
  const definition = definitions.find(({ name }) => name === type);
  const takesSteps = definition !== undefined && maxSteps !== undefined && hasField(definition.config, 'max_steps');
  const config = takesSteps ? { max_steps: maxSteps, ...entry.config } : entry.config;
  if (definition !== undefined) {
    const path = `environments.${tag}.config`;
    parseAs(definition.config, config, path, path);
  }
  const limits = {
    ...(maxSteps === undefined || agent !== 'gym' ? {} : { max_steps: maxSteps }),
    ...(maxTokens === undefined || agent !== 'gym' ? {} : { max_tokens_per_step: maxTokens }),
  };
  return { type, config, options: { ...limits, ...options }, instruction };
}

/** Whether the configuration of an environment has a field. */
function hasField(schema: z.ZodType, field: string): boolean {
  const { properties = {} } = z.toJSONSchema(schema, { io: 'input', unrepresentable: 'any' });
  return Object.hasOwn(properties, field);
}
