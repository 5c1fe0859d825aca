import { createHash, createHmac } from 'node:crypto';
import { FloeError } from '@floe-rl/core';
import type { TaskRequest, UnusableReason } from '@floe-rl/core/schema';
import type { CallbackRow, ResultWithSummary, TaskRow } from '../../store/index.ts';
import { resultListBytes, resultListLength, sessionResultLength } from '../sessions/result-json.ts';
import type { TrajectoryReader } from '../sessions/trajectory-reader.ts';
import { groupReport } from '../tasks/groups.ts';

const SECRET_PREFIX = 'whsec_';

/** The body of a callback: a TaskResult as JSON. It can be read more than once, in chunks that are no larger than one trajectory. */
export type CallbackBody = {
  /** Length of the body in bytes. */
  readonly length: number;
  /**
   * Yields the body. Throws `corrupt_record` when a trajectory has become readable or unreadable since `length` was computed. The caller
   * must then create a new body.
   */
  bytes(): AsyncGenerator<Buffer>;
};

/**
 * Creates the body of a task's callback. `results` iterates over the results of the ended task from the first one; they no longer change,
 * so the body is the same in every try. They are read once to compute the length and once each time that the body is read, and are never
 * in memory together.
 */
export async function callbackBody(
  task: TaskRow,
  unusable: ReadonlyMap<UnusableReason, number>,
  results: () => AsyncIterable<ResultWithSummary>,
  reader: TrajectoryReader,
): Promise<CallbackBody> {
  const { callback_results: kind } = JSON.parse(task.request) as Pick<TaskRequest, 'callback_results'>;
  const rows = kind === 'summary' ? () => withoutTrajectories(results()) : results;
  const paths: string[] = [];
  const lengths: number[] = [];
  for await (const row of rows()) {
    paths.push(`/sessions/${row.session_id}/trajectory`);
    lengths.push(sessionResultLength(row, reader));
  }
  const state = `"status":${JSON.stringify(task.status)},"callback_results":${JSON.stringify(kind ?? 'full')}`;
  const group = JSON.stringify(groupReport(task, unusable));
  const before = `{"task_id":${JSON.stringify(task.task_id)},${state},"group":${group},"results":`;
  const after = `,"result_paths":${JSON.stringify(paths)}}`;
  const length = resultListLength(before, lengths, after);
  return { length, bytes: () => ofLength(length, resultListBytes(before, rows(), after, reader)) };
}

/**
 * Yields `chunks` and throws `corrupt_record` when they do not have exactly `length` bytes together. A chunk that exceeds `length` is not
 * yielded.
 */
async function* ofLength(length: number, chunks: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let left = length;
  const changed = (): FloeError =>
    new FloeError('corrupt_record', 'a trajectory of the callback became readable or unreadable while it was sent');
  for await (const chunk of chunks) {
    left -= chunk.length;
    if (left < 0) throw changed();
    yield chunk;
  }
  if (left > 0) throw changed();
}

async function* withoutTrajectories(rows: AsyncIterable<ResultWithSummary>): AsyncGenerator<ResultWithSummary> {
  for await (const row of rows) yield { ...row, trajectory_ref: null, trajectory_bytes: 0 };
}

/** Returns the value of the `idempotency-key` header. It is the same in every try, so that a trainer can recognise repeats. */
export function idempotencyKey(row: Pick<CallbackRow, 'task_id'>): string {
  return `floe-task-${row.task_id}`;
}

/**
 * Returns the value of the `webhook-id` header, which is the same in every try. It is a hash, because the id must not contain a full stop:
 * full stops separate the parts of the signed text. A task id may contain full stops.
 */
export function messageId(task: Pick<TaskRow, 'task_id' | 'created_at'>): string {
  const digest = createHash('sha256').update(`${task.task_id}\n${task.created_at}`).digest('hex');
  return `msg_${digest.slice(0, 32)}`;
}

/**
 * Returns the headers of a signed callback according to Standard Webhooks (https://www.standardwebhooks.com): HMAC-SHA256 over
 * `id.timestamp.body`, one signature for each secret. Reads `body` to its end without keeping it. Without secrets there is no signature,
 * and `body` is not read.
 */
export async function signatureHeaders(
  secrets: readonly string[],
  id: string,
  unixSeconds: number,
  body: AsyncIterable<Buffer>,
): Promise<Record<string, string>> {
  const headers = { 'webhook-id': id, 'webhook-timestamp': String(unixSeconds) };
  if (secrets.length === 0) return headers;
  const macs = secrets.map((secret) => createHmac('sha256', keyOf(secret)).update(`${id}.${unixSeconds}.`));
  for await (const bytes of body) for (const mac of macs) mac.update(bytes);
  return { ...headers, 'webhook-signature': macs.map((mac) => `v1,${mac.digest('base64')}`).join(' ') };
}

function keyOf(secret: string): Buffer {
  if (!secret.startsWith(SECRET_PREFIX)) throw new FloeError('setup_failed', 'a callback secret begins with whsec_');
  return Buffer.from(secret.slice(SECRET_PREFIX.length), 'base64');
}
