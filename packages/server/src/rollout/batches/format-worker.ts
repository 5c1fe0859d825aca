import { parentPort } from 'node:worker_threads';
import { asFloeError } from '@floe-rl/core';
import type { SessionResult } from '@floe-rl/core/schema';
import { type Encoding, type ExportOptions, encodeExport, trainingGroups } from '@floe-rl/data/trainers';

/** A request to the worker: the SessionResults of a batch as JSON texts, in the order of their groups, and the format to make of them. */
export type FormatRequest = {
  readonly id: number;
  readonly results: readonly Uint8Array[];
  readonly options: ExportOptions;
  readonly encoding: Encoding;
};

/** The reply of the worker: the encoded records, or the error for which there are none. */
export type FormatReply = { readonly id: number } & (
  | { readonly bytes: Uint8Array }
  | { readonly error: { readonly code: string; readonly message: string; readonly details: unknown } }
);

/** Makes the records of one request. */
function format({ id, results, options, encoding }: FormatRequest): FormatReply {
  try {
    const parsed = results.map((bytes) => JSON.parse(Buffer.from(bytes).toString('utf8')) as SessionResult);
    return { id, bytes: encodeExport(trainingGroups(parsed), options, encoding) };
  } catch (thrown) {
    const { code, message, details } = asFloeError(thrown);
    return { id, error: { code, message, details } };
  }
}

parentPort?.on('message', (request: FormatRequest) => {
  parentPort?.postMessage(format(request));
});
