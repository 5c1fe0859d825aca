import { createHash, createHmac } from 'node:crypto';
import { FloeError } from '../../core/errors.ts';
import type { CallbackRow, TaskRow } from '../../store/index.ts';

const SECRET_PREFIX = 'whsec_';

/** The same for every try. Trainers tell by it what they have handled before. */
export function idempotencyKey(row: Pick<CallbackRow, 'task_id'>): string {
  return `floe-task-${row.task_id}`;
}

/** The same for every try. Has no full stop, which separates the parts of what is signed and may be in a task id. */
export function messageId(task: Pick<TaskRow, 'task_id' | 'created_at'>): string {
  const digest = createHash('sha256').update(`${task.task_id}\n${task.created_at}`).digest('hex');
  return `msg_${digest.slice(0, 32)}`;
}

/**
 * The headers of a signed callback, after Standard Webhooks (https://www.standardwebhooks.com): HMAC-SHA256 over
 * `id.timestamp.body`, once with each secret. Reads `body` to its end and keeps nothing of it. Without secrets there is
 * no signature, and `body` is not read.
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
