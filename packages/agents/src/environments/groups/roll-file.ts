import { fieldError, isRecord, parseAs } from '@floe-rl/core';
import { z } from 'zod';
import { type GroupFile, groupFileSchema, SPLITS, type Split } from './group-file.ts';
import { interpolate } from './interpolate.ts';
import { ROLL_CLASSES, ROLL_ENVIRONMENTS, type RollHistory } from './roll-environments.ts';

const count = z.int().min(1);

/** The part of a split of ROLL's file that floe reads. */
const managerSchema = z.looseObject({
  num_env_groups: count.default(128),
  group_size: count.default(1),
  tags: z.array(z.string()).min(1),
  num_groups_partition: z.array(count).nullish(),
});

/** An environment of ROLL's file. */
const entrySchema = z.looseObject({
  env_type: z.string().min(1),
  env_config: z.record(z.string(), z.unknown()).nullish(),
  max_steps: count.nullish(),
  max_tokens_per_step: count.nullish(),
  env_manager_cls: z.string().nullish(),
  agent_runner_cls: z.string().nullish(),
  history_length: z.int().min(0).nullish(),
  agent_system_template: z.string().nullish(),
});
type Entry = z.infer<typeof entrySchema>;

const generatingSchema = z.looseObject({
  temperature: z.number().optional(),
  top_p: z.number().optional(),
  top_k: z.number().optional(),
  max_new_tokens: count.optional(),
});

/** Fields of the file that are read here. The fields of its trainer are not among them. */
const READ = ['custom_envs', 'train_env_manager', 'val_env_manager', 'seed', 'rollout_batch_size', 'val_batch_size'];

/** A file of ROLL as a file of floe. */
export type RollFile = {
  readonly file: GroupFile;
  /** Number of groups of a batch of the split `train`; `null` when the file does not say it. */
  readonly batchSize: number | null;
  /** What of the file has no effect in floe, by the names of its fields. */
  readonly notes: readonly string[];
};

type Content = Readonly<Record<string, unknown>>;

/** Whether a file has the form of ROLL's agentic pipelines. */
export function isRollFile(content: unknown): content is Content {
  if (typeof content !== 'object' || content === null) return false;
  return ['custom_envs', 'train_env_manager', 'val_env_manager'].some((field) => field in content);
}

/**
 * Reads a configuration of ROLL's agentic pipeline, with the files of its `defaults` already merged into it. References are resolved only in
 * what is read, as ROLL does. Environments and classes of ROLL are replaced by floe's own. An environment that floe does not have keeps its
 * name, for an operator's environment of that name. Throws `schema_violation`, which names the field, for what is wrong and for a class that
 * floe does not know.
 */
export function readRollFile(content: Content): RollFile {
  const notes: string[] = [];
  const read = <T extends z.ZodType>(path: string, schema: T): z.output<T> | undefined => {
    const value = interpolate(content[path.split('.')[0] ?? ''], content, path);
    return value === undefined || value === null ? undefined : parseAs(schema, value, path, path);
  };
  const seed = read('seed', z.int().min(0)) ?? 42;
  const managers = {
    train: read('train_env_manager', managerSchema),
    val: read('val_env_manager', managerSchema),
  };
  const environments: Record<string, unknown> = {};
  for (const split of SPLITS) {
    for (const tag of managers[split]?.tags ?? []) {
      const path = `custom_envs.${tag}`;
      const found = objectOf(content.custom_envs)[tag];
      if (found === undefined || tag in environments) continue;
      const entry = parseAs(entrySchema, interpolate(found, content, path), path, path);
      environments[tag] = environmentOf(entry, path, notes);
    }
    noteOthers(managers[split], Object.keys(managerSchema.shape), `${split}_env_manager`, notes);
  }
  noteOthers(content, READ, '', notes, "belongs to ROLL's trainer");
  const section = (split: Split, episodes: number | null) => {
    const manager = managers[split];
    if (manager === undefined) return {};
    const { num_env_groups, group_size, tags, num_groups_partition } = manager;
    const partition = num_groups_partition == null ? {} : { num_groups_partition };
    return { [split]: { num_env_groups, group_size, tags, ...partition, seed, episodes } };
  };
  const { train, val } = managers;
  const valEpisodes = val === undefined ? 1 : (read('val_batch_size', z.int()) ?? 1) / sizeOf(val);
  const rollouts = read('rollout_batch_size', z.int());
  const file = {
    environments,
    ...section('train', null),
    ...section('val', Math.max(1, Math.floor(valEpisodes))),
    task: { sampling: samplingOf(content) },
  };
  return {
    file: parseAs(groupFileSchema, file, 'the file'),
    batchSize:
      train === undefined || rollouts === undefined || rollouts < train.group_size
        ? null
        : Math.floor(rollouts / train.group_size),
    notes,
  };
}

function environmentOf(entry: Entry, path: string, notes: string[]): unknown {
  const { env_type: type, max_steps: maxSteps, max_tokens_per_step: maxTokens } = entry;
  const environment = ROLL_ENVIRONMENTS.get(type);
  const given = entry.env_config ?? {};
  if (environment === undefined) notes.push(`${path}.env_type: floe has no environment ${type}; its name is kept`);
  else noteOthers(given, environment.reads, `${path}.env_config`, notes);
  noteOthers(entry, Object.keys(entrySchema.shape), path, notes);
  const history = historyOf(entry, path);
  // ROLL counts the current step as one of `history_length`.
  const earlier = Math.min(100, Math.max(0, (entry.history_length ?? 0) - 1));
  const summary = entry.history_length == null ? {} : { summary_steps: earlier };
  const isToolCall = entry.agent_runner_cls?.endsWith('.ToolCallRunner') === true;
  const config = environment?.config(given) ?? given;
  return {
    type: environment?.type ?? type,
    config: isToolCall && environment !== undefined ? { ...config, action_format: 'tool' } : config,
    ...(maxSteps == null ? {} : { max_steps: maxSteps }),
    ...(maxTokens == null ? {} : { max_tokens_per_step: maxTokens }),
    options: { history, ...(history === 'append' ? {} : summary) },
    instruction: entry.agent_system_template ?? '',
  };
}

/** Returns what a prompt contains of the steps before it, from the class that runs the episodes. */
function historyOf({ env_manager_cls, agent_runner_cls }: Entry, path: string): RollHistory {
  let history: RollHistory = 'append';
  for (const [field, name] of Object.entries({ env_manager_cls, agent_runner_cls })) {
    if (name == null) continue;
    if (!Object.hasOwn(ROLL_CLASSES, name)) {
      const message = `floe does not know the class ${name}; it knows: ${Object.keys(ROLL_CLASSES).join(', ')}`;
      throw fieldError(`${path}.${field}`, message);
    }
    history = ROLL_CLASSES[name] ?? history;
  }
  return history;
}

/** Converts the sampling settings of ROLL's engine to the settings of a task. */
function samplingOf(content: Content): Record<string, unknown> {
  const path = 'actor_infer.generating_args';
  const found = objectOf(content.actor_infer).generating_args;
  if (found === undefined || found === null) return {};
  const { temperature, top_p, top_k, max_new_tokens } = parseAs(
    generatingSchema,
    interpolate(found, content, path),
    path,
    path,
  );
  return {
    ...(temperature === undefined ? {} : { temperature }),
    ...(top_p === undefined ? {} : { top_p }),
    // ROLL writes -1 for no limit.
    ...(top_k === undefined ? {} : { top_k: Math.max(0, top_k) }),
    ...(max_new_tokens === undefined ? {} : { max_tokens: max_new_tokens }),
  };
}

function noteOthers(
  value: Content | undefined,
  read: readonly string[],
  path: string,
  notes: string[],
  reason = 'has no effect in floe',
): void {
  const others = Object.keys(value ?? {}).filter((field) => !read.includes(field));
  for (const field of others) notes.push(`${path === '' ? field : `${path}.${field}`}: ${reason}`);
}

function sizeOf({ num_env_groups, group_size }: z.infer<typeof managerSchema>): number {
  return num_env_groups * group_size;
}

function objectOf(value: unknown): Content {
  return isRecord(value) ? value : {};
}
