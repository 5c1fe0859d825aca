// A trainer that records every guarantee that the service gave to it, such as an acknowledged task. The checks compare the service's
// behaviour with this record.
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { FloeClient } from '../../src/client/index.ts';
import { sleep, systemClock } from '../../src/core/clock.ts';
import { asFloeError, type ErrorCode } from '../../src/core/errors.ts';
import type { SessionResult, SubmitReply, TaskRequestInput, TaskStatus } from '../../src/schema/index.ts';

/** Milliseconds between two attempts while the service is unreachable. */
const RETRY_PAUSE_MS = 50;
/** Milliseconds between two checks for results that have not arrived. */
const POLL_INTERVAL_MS = 20;
/**
 * Codes of errors from a service that is unreachable or not ready; the trainer retries after these. Any other error is the service's reply.
 */
const TRANSIENT: readonly ErrorCode[] = ['peer_unreachable', 'not_ready', 'store_unavailable', 'overloaded'];

/** A task that the service acknowledged. */
export type SubmittedTask = {
  readonly sessionIds: readonly string[];
  /** Whether the service promised a callback for this task. */
  readonly hasCallback: boolean;
};

export class Trainer {
  /** Acknowledged tasks by task id. */
  readonly tasks = new Map<string, SubmittedTask>();
  /** Results by session id, as the trainer read them by cursor. */
  readonly results = new Map<string, SessionResult>();
  /** A sentence for each violated guarantee, such as a session with two results, a cursor that went back, or a callback with two bodies. */
  readonly violations: string[] = [];
  /** A sentence for each session that has two results. */
  readonly duplicates: string[] = [];
  /**
   * Ids of sessions whose engine misreported tokens in a way that no client can detect. Their trained tokens are those that the engine
   * reported, not those that it sampled.
   */
  readonly undetectable = new Set<string>();
  /** Digests of callback bodies by idempotency key. */
  readonly callbacks = new Map<string, string>();
  private readonly url: () => string;
  private cursor = 0;
  private hasStopped = false;
  private listener: Server | null = null;
  private current: FloeClient;

  /** `url` returns the URL of a server that is running. It is called again after each failure. */
  constructor(url: () => string) {
    this.url = url;
    this.current = this.connect();
  }

  get client(): FloeClient {
    return this.current;
  }

  get isStopped(): boolean {
    return this.hasStopped;
  }

  connect(): FloeClient {
    return new FloeClient({ url: this.url() });
  }

  /** Repeats `call` until the service replies. Throws the reply when it is an error. */
  async untilServed<T>(call: (client: FloeClient) => Promise<T>): Promise<T> {
    for (;;) {
      try {
        return await call(this.current);
      } catch (error) {
        if (!isTransient(error) || this.hasStopped) throw error;
        await sleep(systemClock, RETRY_PAUSE_MS);
        // A server that was restarted may listen on another port, so a new client is created.
        const old = this.current;
        this.current = this.connect();
        await old.close().catch(() => {});
      }
    }
  }

  async submit(task: TaskRequestInput): Promise<SubmitReply> {
    const reply = await this.untilServed((client) => client.submit({ trainer: 'default', ...task }));
    const known = this.tasks.get(reply.task_id);
    if (known !== undefined && known.sessionIds.join() !== reply.session_ids.join()) {
      this.violations.push(`task ${reply.task_id} was acknowledged with different lists of sessions`);
    }
    this.acknowledge(reply, typeof task.callback_url === 'string');
    return reply;
  }

  acknowledge({ task_id, session_ids }: SubmitReply, hasCallback: boolean): void {
    this.tasks.set(task_id, { sessionIds: session_ids, hasCallback });
  }

  cancel(taskId: string): Promise<TaskStatus> {
    return this.untilServed((client) => client.cancel(taskId));
  }

  /** Returns the session ids of an acknowledged task; an empty list for an unknown task. */
  sessionsOf(taskId: string): readonly string[] {
    return this.tasks.get(taskId)?.sessionIds ?? [];
  }

  /** Reads results by cursor until `stop` is called. Continues after restarts of the service. */
  async read(): Promise<void> {
    while (!this.hasStopped) {
      try {
        for await (const result of this.current.results({ after: this.cursor, pageSize: 50 })) {
          this.take(result);
          if (this.hasStopped) return;
        }
      } catch (error) {
        if (this.hasStopped) return;
        if (!isTransient(error)) {
          this.report('reading results', error);
          return;
        }
        await sleep(systemClock, RETRY_PAUSE_MS);
        this.current = this.connect();
      }
    }
  }

  stop(): void {
    this.hasStopped = true;
  }

  /** Starts a server for callbacks on loopback and resolves to its URL. */
  async listen(): Promise<string> {
    const server = createServer((request, reply) => {
      const chunks: Buffer[] = [];
      request.on('data', (chunk: Buffer) => chunks.push(chunk));
      request.on('end', () => {
        this.takeCallback(request, Buffer.concat(chunks));
        reply.writeHead(200).end();
      });
      request.on('error', () => {});
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    this.listener = server;
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}/done`;
  }

  promised(): string[] {
    return [...this.tasks.values()].flatMap((task) => task.sessionIds);
  }

  /** Returns the ids of acknowledged sessions that have no result yet. */
  outstanding(): string[] {
    return this.promised().filter((id) => !this.results.has(id));
  }

  /**
   * Resolves when every acknowledged session has a result. After `limitMs` it records a violation that names some sessions without a
   * result, and resolves.
   */
  async untilSettled(limitMs: number): Promise<void> {
    if (await until(() => this.outstanding().length === 0, limitMs)) return;
    const open = this.outstanding();
    const some = open.slice(0, 3).join(', ');
    this.violations.push(`${open.length} sessions have no result after ${limitMs} ms, such as ${some}`);
  }

  /** Records a violation for an error that the service should not have returned. */
  report(doing: string, error: unknown): void {
    const { code, message } = asFloeError(error);
    this.violations.push(`${doing}: ${code}: ${message}`);
  }

  async close(): Promise<void> {
    this.hasStopped = true;
    this.listener?.closeAllConnections();
    this.listener?.close();
    await this.current.close().catch(() => {});
  }

  private take(result: SessionResult): void {
    const { cursor = 0 } = result;
    if (cursor <= this.cursor) this.violations.push(`cursor ${cursor} after ${this.cursor}`);
    this.cursor = cursor;
    const earlier = this.results.get(result.session_id);
    if (earlier !== undefined) {
      const likeness = digestOf(earlier) === digestOf(result) ? 'equal' : 'different';
      this.duplicates.push(`session ${result.session_id} has two results (${likeness})`);
    }
    this.results.set(result.session_id, result);
  }

  private takeCallback(request: IncomingMessage, body: Buffer): void {
    const key = String(request.headers['idempotency-key']);
    const digest = createHash('sha256').update(body).digest('hex');
    const known = this.callbacks.get(key);
    if (known !== undefined && known !== digest) this.violations.push(`callback ${key} was sent with different bodies`);
    this.callbacks.set(key, digest);
  }
}

/** Polls `condition` until it is true or `limitMs` have passed. Resolves to whether it became true. */
export async function until(
  condition: () => boolean,
  limitMs: number,
  intervalMs: number = POLL_INTERVAL_MS,
): Promise<boolean> {
  const deadlineMs = systemClock.monotonicMs() + limitMs;
  while (!condition()) {
    if (systemClock.monotonicMs() > deadlineMs) return false;
    await sleep(systemClock, intervalMs);
  }
  return true;
}

function isTransient(error: unknown): boolean {
  return TRANSIENT.includes(asFloeError(error).code);
}

function digestOf({ cursor: _, ...result }: SessionResult): string {
  return createHash('sha256').update(JSON.stringify(result)).digest('hex');
}
