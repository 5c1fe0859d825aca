import { FloeError } from '@floe-rl/core';
import { contentText } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { RowAdvantage } from './sequence.ts';
import type { TrainingGroup, TrainingRow, TrainingSample } from './training-row.ts';

/** A column of booleans, one byte each. It is written as `true` and `false`, where a Uint8Array is written as 1 and 0. */
export class Booleans {
  readonly values: Uint8Array;

  constructor(values: Uint8Array) {
    this.values = values;
  }
}

/** A value that has no token columns, such as a list of messages. */
export class Json {
  readonly value: unknown;

  constructor(value: unknown) {
    this.value = value;
  }
}

/** A value of a record. Token columns are typed arrays, so that they are written without a number object for each token. */
export type RecordValue =
  | null
  | boolean
  | number
  | string
  | Int32Array
  | Float32Array
  | Uint8Array
  | Booleans
  | Json
  | readonly RecordValue[]
  | { readonly [name: string]: RecordValue };

/** One object that a trainer reads, with the trainer's own field names. */
export type TrainerRecord = { readonly [name: string]: RecordValue };

/** Groups with the advantages of the rows of their samples. */
export type TrainingBatch = {
  readonly groups: readonly {
    readonly group: TrainingGroup;
    readonly advantages: readonly (readonly RowAdvantage[])[] | null;
  }[];
};

/** A row with its place in a batch. The numbers count from 0. */
export type PlacedRow = {
  readonly row: TrainingRow;
  readonly sample: TrainingSample;
  readonly group: TrainingGroup;
  readonly groupNumber: number;
  /** Number of the sample in the batch. */
  readonly sampleNumber: number;
  /** Number of the row in the batch. */
  readonly rowNumber: number;
  /** Number of the row in its sample. */
  readonly rowIndex: number;
  /** `null` when the batch has no advantages. */
  readonly advantage: RowAdvantage | null;
};

/** The rows of a batch that belong to one sample. */
export type PlacedSample = Pick<PlacedRow, 'sample' | 'group' | 'groupNumber' | 'sampleNumber'> & {
  readonly rows: readonly PlacedRow[];
};

/** Returns the samples of a batch with their rows, in order. */
export function placedSamples(batch: TrainingBatch): PlacedSample[] {
  let sampleNumber = 0;
  let rowNumber = 0;
  return batch.groups.flatMap(({ group, advantages }, groupNumber) =>
    group.samples.map((sample, index) => {
      const place = {
        sample,
        group,
        groupNumber,
        sampleNumber: sampleNumber++,
      };
      return {
        ...place,
        rows: sample.rows.map((row, rowIndex) => {
          const advantage = advantages?.[index]?.[rowIndex] ?? null;
          return { ...place, row, advantage, rowIndex, rowNumber: rowNumber++ };
        }),
      };
    }),
  );
}

/** Returns the rows of a batch, in order. */
export function placedRows(batch: TrainingBatch): PlacedRow[] {
  return placedSamples(batch).flatMap(({ rows }) => rows);
}

/** Returns the rows of a batch that have at least one trained token. */
export function trainedRows(batch: TrainingBatch): PlacedRow[] {
  return placedRows(batch).filter(({ row }) => row.lossMask.includes(1));
}

/**
 * Returns the rows whose tokens all have a known policy version, for trainers that compare versions. A reply has no version when an update of
 * the weights froze it before its first token. When no row has known versions, the engine does not report versions, and all rows are returned.
 */
export function withKnownVersions(rows: readonly PlacedRow[]): readonly PlacedRow[] {
  const known = rows.filter(({ row }) => row.versionSpans.every(({ version }) => version !== null));
  return known.length === 0 ? rows : known;
}

/** Returns the advantage of a row. Throws `unsupported` when the batch was made without advantages, which `format` needs. */
export function requiredAdvantage({ advantage }: PlacedRow, format: string): RowAdvantage {
  if (advantage !== null) return advantage;
  throw new FloeError('unsupported', `the format ${format} needs advantages; choose a method other than "none"`, {
    format,
  });
}

/**
 * Returns the advantage of a row as one number. Throws `unsupported` when its replies have different advantages, because `format` has no place
 * for them.
 */
export function onlyAdvantage(place: PlacedRow, format: string): number {
  const advantage = requiredAdvantage(place, format);
  if (typeof advantage === 'number') return advantage;
  const { lossMask, traceId } = place.row;
  const [first = 0, ...others] = new Set(advantage.filter((_, at) => lossMask[at] === 1));
  if (others.length === 0) return first;
  throw new FloeError(
    'unsupported',
    `trace ${traceId} has an advantage for each reply, but the format ${format} has one for each trace; build traces with the strategy "step"`,
    { trace_id: traceId, format },
  );
}

/**
 * Returns the reward of a row. Throws `unsupported` when the sample has no reward, because `format` cannot express this, and 0 has another
 * meaning.
 */
export function requiredReward({ row, sample }: PlacedRow, format: string): number {
  if (row.reward !== null) return row.reward;
  throw new FloeError(
    'unsupported',
    `session ${sample.sessionId} has no reward, which the format ${format} needs; give the task an evaluator`,
    { session_id: sample.sessionId, format },
  );
}

/** Returns the only row of a sample. Throws `unsupported` when it has another number of rows, with the advice `instead`. */
export function onlyRow({ sample, rows }: PlacedSample, format: string, instead: string): PlacedRow {
  const [row] = rows;
  if (row !== undefined && rows.length === 1) return row;
  throw new FloeError(
    'unsupported',
    `session ${sample.sessionId} has ${rows.length} traces, but the format ${format} has one row for each sample; ${instead}`,
    { session_id: sample.sessionId, traces: rows.length, format },
  );
}

/** Maximum number of tokens of all rows after padding. Some formats have ten padded columns, which then take a few GiB. */
const MAX_PADDED_TOKENS = 2 ** 25;

/** Throws `unsupported` when padding all rows of a batch to `length` tokens would take too much memory. */
export function refuseLargePadding(batch: TrainingBatch, length: number, format: string): void {
  const rows = placedRows(batch).length;
  if (rows * length <= MAX_PADDED_TOKENS) return;
  throw new FloeError(
    'unsupported',
    `${rows} traces padded to ${length} tokens each are more than ${MAX_PADDED_TOKENS} tokens; export fewer tasks at a time, or pad less`,
    { rows, length, limit: MAX_PADDED_TOKENS, format },
  );
}

/** Returns the text of the assistant's messages in the response, without the text of tool results. */
export function responseText({ responseMessages }: TrainingRow): string {
  return responseMessages
    .flatMap((message) => (message.role === 'assistant' ? [contentText(message.content)] : []))
    .join('');
}

/** Returns the URLs of the images in a row's messages, in order. */
export function imagesOf({ row, sample }: PlacedRow): string[] {
  return [...row.promptMessages, ...row.responseMessages].flatMap(({ content }) => {
    if (content === null || content === undefined || typeof content === 'string') return [];
    return content.flatMap((part) => {
      if (part.type !== 'image_url') return [];
      const { url } = part.image_url;
      return [sample.images[url] ?? url];
    });
  });
}

/** Throws `unsupported` when a trace of a batch has images in its context, for a format that does not carry them. */
export function refuseImages(batch: TrainingBatch, format: string): void {
  for (const place of placedRows(batch)) {
    const count = imagesOf(place).length;
    if (count === 0) continue;
    throw new FloeError(
      'unsupported',
      `trace ${place.row.traceId} has ${count} images in its context, which the format ${format} does not carry`,
      { trace_id: place.row.traceId, images: count, format },
    );
  }
}

/** Schema of a numeric option: a number, or the text of a number as on a command line. An empty text is not a number. */
export const numberOption = z
  .union([z.number(), z.string().regex(/^[0-9]+(?:\.[0-9]+)?$/, 'must be a number')], 'must be a number')
  .transform(Number);

/** Schema of the option `rewards` of formats that have a place for the reward of each reply. */
export const rewardsOption = z
  .enum(['trace', 'replies'])
  .default('trace')
  .describe("trace: one reward for each trace; replies: the evaluator's reward of each reply, on its last token");
