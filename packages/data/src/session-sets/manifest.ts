import { z } from 'zod';

/** Name of the file that describes a set. The file is written last, so a folder without it is not a complete set. */
export const MANIFEST_FILE = 'floe.json';

/** Version of the layout of sets. */
export const SET_VERSION = 1;

export const SET_FORMATS = ['sessions', 'sft', 'sharegpt', 'preference', 'verifier', 'atif'] as const;
export type SetFormat = (typeof SET_FORMATS)[number];

export const SET_ENCODINGS = ['jsonl', 'parquet'] as const;
export type SetEncoding = (typeof SET_ENCODINGS)[number];

const count = z.int().min(0);

const setFileSchema = z.strictObject({
  /** Path in the folder, with slashes. */
  path: z.string(),
  /** Number of rows; 0 for an image. */
  rows: count,
  bytes: count,
  sha256: z.string(),
});
export type SetFile = z.output<typeof setFileSchema>;

const acceptanceGroupSchema = z.strictObject({
  value: z.string().nullable(),
  sessions: count,
  accepted: count,
  rate: z.number().describe('share of accepted sessions'),
  tasks: count,
  tasks_accepted: count.describe('tasks with an accepted session'),
  sampled_tokens: count.describe('0 for sessions without an audit'),
  trained_tokens: count,
});
export type AcceptanceGroup = z.output<typeof acceptanceGroupSchema>;

/** Counts of sessions by the value of one field. */
const acceptanceSchema = z.strictObject({
  conditions: z.array(z.string()),
  by: z.string(),
  groups: z.array(acceptanceGroupSchema),
  total: acceptanceGroupSchema.omit({ value: true }),
});
export type Acceptance = z.output<typeof acceptanceSchema>;

export const manifestSchema = z.strictObject({
  floe_set: z.literal(SET_VERSION),
  format: z.enum(SET_FORMATS),
  encoding: z.enum(SET_ENCODINGS),
  sessions: count,
  rows: count,
  tokens: count.describe('tokens of prompts and responses of all traces'),
  skipped: z.record(z.string(), count).describe('sessions that were not written, by reason'),
  splits: z.record(z.string(), count).describe('number of rows of each split'),
  files: z.array(setFileSchema),
  acceptance: acceptanceSchema,
});
export type Manifest = z.output<typeof manifestSchema>;
