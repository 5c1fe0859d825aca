import { Readable } from 'node:stream';
import { asFloeError, isRecord, parseJson } from '@floe-rl/core';
import type { ExportOptions } from '@floe-rl/data/trainers';
import { batchHead, batchWithRecords, batchWithResults, resultTexts } from '../batches/batch-json.ts';
import type { BatchFormatter } from '../batches/formatter.ts';
import { nextBatch } from '../batches/hand-out.ts';
import { rewindStream } from '../batches/rewind.ts';
import { readStaleness } from '../batches/sample-staleness.ts';
import { addRows, createStream, endStream, readStream } from '../batches/streams.ts';
import { streamView } from '../batches/views.ts';
import type { RolloutContext } from '../context.ts';
import { queryError } from '../field-errors.ts';
import type { Api } from './api.ts';
import type { Call, Handlers } from './handler.ts';

type BatchRoutes =
  | 'createBatchStream'
  | 'listBatchStreams'
  | 'getBatchStream'
  | 'endBatchStream'
  | 'addBatchRows'
  | 'batchStaleness'
  | 'rewindBatchStream'
  | 'nextBatch';

/** Creates the handlers of the routes that give batches of informative groups to trainers. */
export function batchHandlers(context: RolloutContext, formatter: BatchFormatter): Handlers<BatchRoutes> {
  return {
    createBatchStream: ({ body }) => createStream(context, body),
    listBatchStreams: async ({ query }) => {
      const streams = await context.store.read((tables) =>
        tables.batches.streams({ status: null, limit: query.limit }),
      );
      return { streams: await Promise.all(streams.map((stream) => streamView(context, stream))) };
    },
    getBatchStream: ({ id }) => readStream(context, id),
    batchStaleness: ({ id, query }) => readStaleness(context, id, query.limit),
    endBatchStream: ({ id }) => endStream(context, id),
    addBatchRows: ({ id, body }) => addRows(context, id, body),
    rewindBatchStream: ({ id, body }) => rewindStream(context, id, body),
    nextBatch: (call) => sendBatch(context, formatter, call),
  };
}

async function sendBatch(
  context: RolloutContext,
  formatter: BatchFormatter,
  { id, query, disconnected, reply }: Call<Api['nextBatch']>,
): Promise<Readable | Buffer> {
  const options = exportOptions(query);
  const handed = await nextBatch(context, {
    batchId: id,
    size: query.size,
    policyVersion: query.policy_version,
    after: query.after,
    waitMs: query.wait * 1000,
    disconnected,
  });
  const head = await batchHead(context, handed);
  reply.type('application/json');
  if (options === null || handed.groups.length === 0) {
    return Readable.from(batchWithResults(context, head), { objectMode: false });
  }
  const bytes = await formatter.format(await resultTexts(context, head.groups), options, query.encoding);
  if (query.encoding === 'jsonl') return Readable.from(batchWithRecords(head, bytes), { objectMode: false });
  // Headers carry ASCII only.
  const header = JSON.stringify(head).replace(
    /[^ -~]/g,
    (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
  reply.header('x-floe-batch', header).type('application/vnd.apache.arrow.stream');
  return bytes;
}

/**
 * Returns the format of the export and its options; `null` when the reply has the results without conversion. Throws `schema_violation` for
 * options without a format.
 */
function exportOptions(query: Call<Api['nextBatch']>['query']): ExportOptions | null {
  const { format, advantages, per_session: perSession, per_turn: perTurn, constrained, options, encoding } = query;
  if (format !== undefined) {
    const given = options === undefined ? {} : formatOptions(options);
    return { format, advantages, perSession, perTurn, constrained, options: given };
  }
  const withoutDefaults = {
    advantages,
    per_session: perSession || undefined,
    per_turn: perTurn || undefined,
    constrained,
    options,
    encoding: encoding === 'arrow' ? encoding : undefined,
  };
  const [extra] = Object.entries(withoutDefaults).find(([, value]) => value !== undefined) ?? [undefined];
  if (extra !== undefined) throw queryError(extra, 'needs `format`');
  return null;
}

/** Parses the options of a format. Throws `schema_violation` for anything but a JSON object. */
function formatOptions(text: string): Record<string, unknown> {
  let given: unknown = null;
  try {
    given = parseJson(text);
  } catch (thrown) {
    throw queryError('options', `must be a JSON object: ${asFloeError(thrown).message}`);
  }
  if (!isRecord(given)) {
    throw queryError('options', 'must be a JSON object');
  }
  return given;
}
