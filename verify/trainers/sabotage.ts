import type { RandomSource } from '@floe-rl/core';
import type { SessionResult, Trace } from '@floe-rl/core/schema';
import type { FormatName } from '@floe-rl/data/trainers';
import type { ExportFile } from './exports.ts';
import { VOCABULARY } from './trajectories.ts';

/**
 * Defects that a wrong export could have, one kind at a time in every record.
 *
 * - `shift`: logprobs are one position late.
 * - `retokenise`: some tokens have another id.
 * - `mask`: the loss mask is one position late.
 */
export const SABOTAGES = ['shift', 'retokenise', 'mask'] as const;
export type Sabotage = (typeof SABOTAGES)[number];

type Value = null | boolean | number | string | Value[] | { [name: string]: Value };
type Fields = { [name: string]: Value };

const LOGPROBS = new Set([
  'compact_logprobs',
  'generation_logprobs',
  'infer_logprobs',
  'logprobs',
  'old_log_probs',
  'response_logprobs',
  'rollout_log_probs',
  'rollout_logprobs',
]);
const MASKS = new Set(['completion_mask', 'env_mask', 'loss_mask', 'loss_masks', 'mask', 'response_mask']);
/** Names of the fields that contain trained ids. */
const IDS = new Set([
  'completion_ids',
  'input_ids',
  'observation_tokens',
  'response_ids',
  'responses',
  'target_tokens',
  'token_ids',
  'tokens',
]);

/** Returns results whose traces have a defect, so that floe's own rows have it in every encoding. */
export function sabotagedResults(
  results: readonly SessionResult[],
  sabotage: Sabotage,
  random: RandomSource,
): SessionResult[] {
  return results.map((result) => {
    if (result.trajectory === null) return result;
    const traces = result.trajectory.traces.map((trace) => sabotagedTrace(trace, sabotage, random));
    return { ...result, trajectory: { ...result.trajectory, traces } };
  });
}

function sabotagedTrace(trace: Trace, sabotage: Sabotage, random: RandomSource): Trace {
  switch (sabotage) {
    case 'shift':
      return { ...trace, response_logprobs: late(trace.response_logprobs) };
    case 'retokenise':
      return { ...trace, response_ids: otherId(trace.response_ids, random) };
    case 'mask':
      return { ...trace, loss_mask: late(trace.loss_mask) };
  }
}

/**
 * Returns the files with a defect in each record of each format. floe's own rows stay as they are, because the others are compared with them.
 */
export function sabotaged(files: readonly ExportFile[], sabotage: Sabotage, random: RandomSource): ExportFile[] {
  return files.map((file) => {
    if (file.format === 'floe') return file;
    const records = file.text
      .split('\n')
      .slice(0, -1)
      .map((line) => JSON.parse(line) as Fields);
    const changed = records.map((record) => sabotagedRecord(record, file.format, sabotage, random));
    return { ...file, text: changed.map((record) => `${JSON.stringify(record)}\n`).join('') };
  });
}

function sabotagedRecord(record: Fields, format: FormatName, sabotage: Sabotage, random: RandomSource): Fields {
  switch (sabotage) {
    case 'shift':
      return changeLists(record, LOGPROBS, late) as Fields;
    case 'retokenise':
      return changeLists(record, IDS, (ids) => otherId(ids as number[], random)) as Fields;
    case 'mask':
      return lateMask(record, format);
  }
}

/** Formats without a mask have trained ranges instead, whose starts and ends become one position late. */
function lateMask(record: Fields, format: FormatName): Fields {
  switch (format) {
    case 'openrlhf': {
      const ranges = record.action_ranges as number[][];
      return { ...record, action_ranges: ranges.map((range) => range.map((at) => at + 1)) };
    }
    case 'nemo_rl':
      return { ...record, message_log: lateMessages(record.message_log as Message[]) };
    case 'rllm':
      return { ...record, trajectories: (record.trajectories as Fields[]).map(lateSteps) };
    case 'art':
      return lateChoices(record);
    default:
      return changeLists(record, MASKS, late) as Fields;
  }
}

type Message = Fields & { role: string; token_ids: number[]; generation_logprobs: number[] };

/** Moves the first token of each trained message to the message before it. */
function lateMessages(log: readonly Message[]): Message[] {
  const moved = log.map((message) => ({ ...message }));
  moved.forEach((message, index) => {
    const before = moved[index - 1];
    if (message.role !== 'assistant' || before === undefined) return;
    before.token_ids = [...before.token_ids, ...message.token_ids.slice(0, 1)];
    before.generation_logprobs = [...before.generation_logprobs, ...message.generation_logprobs.slice(0, 1)];
    message.token_ids = message.token_ids.slice(1);
    message.generation_logprobs = message.generation_logprobs.slice(1);
  });
  return moved;
}

/** Moves the first trained token of each step to its prompt. */
function lateSteps(trajectory: Fields): Fields {
  const steps = (trajectory.steps as { prompt_ids: number[]; response_ids: number[]; logprobs: number[] }[]).map(
    (step) => ({
      ...step,
      prompt_ids: [...step.prompt_ids, ...step.response_ids.slice(0, 1)],
      response_ids: step.response_ids.slice(1),
      logprobs: step.logprobs.slice(1),
    }),
  );
  return { ...trajectory, steps };
}

/** Moves the first token of each choice to its prompt. */
function lateChoices(record: Fields): Fields {
  const moved = (history: Fields): Fields => ({
    ...history,
    messages_and_choices: (history.messages_and_choices as (Fields & Choice)[]).map((choice) => ({
      ...choice,
      prompt_token_ids: [...choice.prompt_token_ids, ...choice.token_ids.slice(0, 1)],
      token_ids: choice.token_ids.slice(1),
      compact_logprobs: choice.compact_logprobs.slice(1),
    })),
  });
  return { ...moved(record), additional_histories: (record.additional_histories as Fields[]).map(moved) };
}

type Choice = { prompt_token_ids: number[]; token_ids: number[]; compact_logprobs: number[] };

/** Applies a change to the innermost lists of all fields with one of the names. A tensor's list is its member `data`. */
function changeLists(
  value: Value,
  names: ReadonlySet<string>,
  change: (list: Value[]) => Value[],
  isIn = false,
): Value {
  if (Array.isArray(value)) {
    const isInnermost = value.every((element) => element === null || typeof element !== 'object');
    if (isInnermost) return isIn ? change(value) : value;
    return value.map((element) => changeLists(element, names, change, isIn));
  }
  if (value === null || typeof value !== 'object') return value;
  const isTensor = 'data' in value;
  return Object.fromEntries(
    Object.entries(value).map(([name, member]) => {
      const inside = names.has(name) || (isIn && isTensor && name === 'data');
      return [name, changeLists(member, names, change, inside)];
    }),
  );
}

function late<T>(list: readonly T[]): T[] {
  const last = list.at(-1);
  return last === undefined ? [] : [last, ...list.slice(0, -1)];
}

/** Replaces the ids at about one in four positions, and at least at one, by other ids. */
function otherId(ids: readonly number[], random: RandomSource): number[] {
  const certain = Math.floor(random() * ids.length);
  return ids.map((id, at) =>
    at === certain || random() < 0.25 ? 1 + ((id + 1 + Math.floor(random() * 100)) % (VOCABULARY - 1)) : id,
  );
}
