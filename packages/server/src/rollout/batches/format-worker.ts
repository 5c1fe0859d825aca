import { movedBytes, serveThread } from '@floe-rl/core';
import type { SessionResult } from '@floe-rl/core/schema';
import { type Encoding, type ExportOptions, encodeExport, trainingGroups } from '@floe-rl/data/trainers';

/** What the thread makes: the SessionResults of a batch as JSON texts, in the order of their groups, and the format to make of them. */
export type FormatRequest = {
  readonly results: readonly Uint8Array[];
  readonly options: ExportOptions;
  readonly encoding: Encoding;
};

export type FormatOperations = typeof operations;

const operations = {
  /** Returns the encoded records. Throws the errors of `encodeExport`. */
  format({ results, options, encoding }: FormatRequest) {
    const parsed = results.map((bytes) => JSON.parse(Buffer.from(bytes).toString('utf8')) as SessionResult);
    return movedBytes(encodeExport(trainingGroups(parsed), options, encoding));
  },
};

serveThread(operations);
