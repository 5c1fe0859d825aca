import { FloeError } from '@floe-rl/core';
import type { BatchStreamRequest } from '@floe-rl/core/schema';
import type { BatchStreamRow } from '../../store/index.ts';

/** Returns the stored request of a stream. It was checked before it was stored. */
export function streamRequest(stream: Pick<BatchStreamRow, 'request'>): BatchStreamRequest {
  return JSON.parse(stream.request) as BatchStreamRequest;
}

/** Maximum length of a stored message in characters. */
const MAX_MESSAGE_CHARS = 1_000;

/**
 * Returns an error message as a text that every database can store. PostgreSQL cannot store NUL characters, which messages may quote from
 * foreign JSON.
 */
export function storedMessage(message: string): string {
  return message.replace(/\p{Cc}/gu, ' ').slice(0, MAX_MESSAGE_CHARS);
}

export function unknownStream(batchId: string): FloeError {
  return new FloeError('not_found', `there is no batch stream ${batchId}`, { batch_id: batchId });
}
