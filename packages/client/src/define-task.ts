import { fieldError } from '@floe-rl/core';
import type { BatchStreamRequestInput, TaskRequestInput } from '@floe-rl/core/schema';

/** What a policy is trained on, and what it is evaluated on. */
export type TaskSplit = 'train' | 'val';

/** A row of a data set. */
export type TaskRow = Readonly<Record<string, unknown>>;

/** A tool by its name, or with settings. */
export type TaskTool = string | { readonly name: string; readonly config?: Readonly<Record<string, unknown>> };

/** Fields of a task definition that may be different in training and in evaluation. */
type SplitFields = {
  /** Tools of the agent. Default: the agent's own tools. */
  readonly tools?: readonly TaskTool[];
  /** Hints of the agent: all, none, or by kind. Default: all. */
  readonly hints?: boolean | Readonly<Record<string, boolean | string>>;
};

/** How rows of one data source become tasks. */
export type TaskDefinition<Row extends TaskRow = TaskRow> = SplitFields & {
  /** Value of the field `data_source` of the rows. */
  readonly dataSource: string;
  instruction(row: Row): string;
  /** The agent of the harness `floe`; default: `gym` for a task with an environment, else `tool_call`. */
  readonly agent?: string;
  /** Settings of the agent. */
  readonly options?: Readonly<Record<string, unknown>>;
  /** The environment of a row. */
  environment?(row: Row): TaskRequestInput['environment'];
  /** The evaluator of a row; default: `environment` for a task with an environment, else none. */
  evaluator?(row: Row): TaskRequestInput['evaluator'];
  /** The sandbox of a row; default: none (`{backend: 'none'}`). */
  runtime?(row: Row): TaskRequestInput['runtime'];
  /** Replacements of these fields for the split `val`. */
  readonly val?: SplitFields;
};

/** Defines how rows of one data source become tasks. */
export function defineTask<Row extends TaskRow>(definition: TaskDefinition<Row>): TaskDefinition {
  // The type of the rows is not checked here: the rows come from a file, and the definition states their type.
  return definition as unknown as TaskDefinition;
}

/** Fields of a task that are the same for all rows. */
export type TaskFields = Omit<TaskRequestInput, 'instruction' | 'agent' | 'environment' | 'evaluator' | 'runtime'>;

/** The fields of a task that its row decides. */
type RowTask = Pick<TaskRequestInput, 'instruction' | 'agent' | 'environment' | 'evaluator' | 'runtime'>;

/**
 * Returns the tasks of rows, which may be of several data sources. Throws `schema_violation`, which names the row, for a data source that no
 * definition has.
 */
export function taskRequests(
  definitions: readonly TaskDefinition[],
  rows: readonly TaskRow[],
  { split = 'train', ...fields }: TaskFields & { readonly split?: TaskSplit } = {},
): TaskRequestInput[] {
  return rows.map((row, index) => ({
    ...fields,
    ...taskOf(definitions, row, index, split),
    metadata: { ...fields.metadata, data_source: row.data_source, row },
  }));
}

/**
 * Returns a batch stream that samples rows of several data sources in one job. `task` are fields of all its tasks. Throws as
 * {@link taskRequests}.
 */
export function taskStream(
  definitions: readonly TaskDefinition[],
  rows: readonly TaskRow[],
  {
    split = 'train',
    task = {},
    ...stream
  }: Omit<BatchStreamRequestInput, 'source' | 'task' | 'purpose'> & {
    readonly split?: TaskSplit;
    readonly task?: TaskFields;
  } = {},
): BatchStreamRequestInput {
  const names = ['instruction', 'agent', 'environment', 'evaluator', 'runtime'] as const;
  return {
    ...stream,
    purpose: split === 'val' ? 'evaluate' : 'train',
    source: { kind: 'rows', rows: rows.map((row, index) => ({ row, task: taskOf(definitions, row, index, split) })) },
    task: {
      ...task,
      ...Object.fromEntries(names.map((name) => [name, `{{row.task.${name}}}`])),
      metadata: { ...task.metadata, data_source: '{{row.row.data_source}}', row: '{{row.row}}' },
    },
  };
}

function taskOf(definitions: readonly TaskDefinition[], row: TaskRow, index: number, split: TaskSplit): RowTask {
  const definition = definitions.find(({ dataSource }) => dataSource === row.data_source);
  if (definition === undefined) {
    const path = `rows.${index}.data_source`;
    const known = definitions.map(({ dataSource }) => dataSource).join(', ') || 'none';
    const message = `no task is defined for ${JSON.stringify(row.data_source)}; there are: ${known}`;
    throw fieldError(path, message);
  }
  const environment = definition.environment?.(row) ?? null;
  const { agent = environment === null ? 'tool_call' : 'gym', options = {}, tools, hints } = definition;
  const used = { tools, hints, ...(split === 'val' ? definition.val : {}) };
  const settings = {
    agent,
    options,
    ...(used.tools === undefined ? {} : { tools: used.tools }),
    ...(used.hints === undefined ? {} : { hints: used.hints }),
  };
  const evaluator = definition.evaluator?.(row) ?? (environment === null ? null : { strategy: 'environment' });
  return {
    instruction: definition.instruction(row),
    agent: { harness: 'floe', settings },
    environment,
    evaluator,
    runtime: definition.runtime?.(row) ?? { backend: 'none' },
  };
}
