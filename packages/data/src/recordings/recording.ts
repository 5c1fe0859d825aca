import type { CompletionRecord, SessionSummary, Trajectory } from '@floe-rl/core/schema';
import { z } from 'zod';

/** The formats of files with ended sessions. `floe` is floe's own; the others are formats of other systems. */
export type RecordingFormat = 'floe' | 'polar' | 'atif' | 'inspect';

/** Where a value is in a file, and when the file was changed. */
export type RecordingSource = {
  /** The file with the line or entry, such as `results.jsonl:3`, for messages. */
  readonly where: string;
  readonly file: string;
  /** Unix time in milliseconds. */
  readonly modifiedMs: number;
};

/** An ended session that was read from a file. */
export type Recording = {
  readonly source: RecordingSource;
  readonly format: RecordingFormat;
  /** The kinds of data that a session of a server has and this file lacks, as texts for the user. */
  readonly lacks: readonly string[];
  readonly harness: string;
  readonly summary: SessionSummary;
  /** `null` for a session without a trajectory. */
  readonly trajectory: Trajectory | null;
  readonly records: readonly CompletionRecord[];
  /** Unix time in milliseconds at which the session ended. If the file does not state it, the time of the file's last change. */
  readonly endedMs: number;
};

/** A format that can be read. */
export type RecordingReader = {
  readonly format: RecordingFormat;
  /**
   * Returns the sessions in a JSON value; `null` when the value has another format. Throws `schema_violation` with the place in the file when
   * the value has this format and is invalid.
   */
  readonly read: (value: unknown, source: RecordingSource) => readonly Recording[] | null;
};

/** A list of numbers. It is checked in a loop, because a schema for each element would take longer than reading the file. */
export const numbers = z.custom<number[]>(
  (value) => Array.isArray(value) && value.every((one) => typeof one === 'number'),
  'must be a list of numbers',
);
