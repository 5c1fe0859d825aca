// A trainer that records what the service promised to it, such as acknowledged tasks, and what it received. The checks compare both
// records.
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { FloeClient } from '@floe-rl/client';
import { asFloeError, type ErrorCode, sleep, systemClock } from '@floe-rl/core';
import type { SessionResult, SubmitReply, TaskRequestInput, TaskStatus } from '@floe-rl/core/schema';
import { until } from '../runner/until.ts';

/** Time in ms between two attempts of a request while the service is unreachable or not ready. */
const RETRY_PAUSE_MS = 50;
/**
 * Error codes after which the trainer repeats a request, because the service is unreachable or not ready. Any other error code is a final
 * reply.
 */
const TRANSIENT: readonly ErrorCode[] = ['peer_unreachable', 'not_ready', 'store_unavailable', 'overloaded'];

/** A task whose submission the service acknowledged. */
export type SubmittedTask = {
  readonly sessionIds: readonly string[];
  /** Whether the service promised a callback for this task. */
  readonly hasCallback: boolean;
};

export class Trainer {
  /** Tasks whose submission the service acknowledged, by task id. */
  readonly tasks = new Map<string, SubmittedTask>();
  /** Results that the trainer has read from the service, by session id. */
  readonly results = new Map<string, SessionResult>();
  /**
   * One sentence for each violated guarantee that has no list of its own, such as a cursor that went back or two different bodies for one
   * callback.
   */
  readonly violations: string[] = [];
  /** One sentence for each session for which the trainer has read two results. */
  readonly duplicates: string[] = [];
  /**
   * Ids of sessions whose tokens the engine misreported in a way that no client can detect. They are not compared with the ledger. Their
   * trained tokens are the tokens that the engine reported, and the ledger has the tokens that it sampled.
   */
  readonly undetectable = new Set<string>();
  /** SHA-256 digests of the received callback bodies, by idempotency key of the callback. */
  readonly callbacks = new Map<string, string>();
  private readonly url: () => string;
  private readonly token: string | null;
  private cursor = 0;
  private hasStopped = false;
  private listener: Server | null = null;
  private current: FloeClient;

  /**
   * `url` returns the URL of a server that is running. It is called for the first connection and for each reconnection. `token` is the control
   * token of the server; `null` for none.
   */
  constructor(url: () => string, token: string | null = null) {
    this.url = url;
    this.token = token;
    this.current = this.connect();
  }

  get client(): FloeClient {
    return this.current;
  }

  get isStopped(): boolean {
    return this.hasStopped;
  }

  connect(): FloeClient {
    return new FloeClient({ url: this.url(), ...(this.token === null ? {} : { token: this.token }) });
  }

  /**
   * Repeats `call` while the service is unreachable or not ready. Resolves to the reply. Rejects with any other error that the service
   * returns.
   */
  async untilServed<T>(call: (client: FloeClient) => Promise<T>): Promise<T> {
    for (;;) {
      try {
        return await call(this.current);
      } catch (error) {
        if (!isTransient(error) || this.hasStopped) throw error;
        await sleep(systemClock, RETRY_PAUSE_MS);
        // The server that failed may stay down, so the new client connects to a server that is running now.
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

  /** Returns the session ids from the acknowledgement of a task; an empty list when the task is unknown. */
  sessionsOf(taskId: string): readonly string[] {
    return this.tasks.get(taskId)?.sessionIds ?? [];
  }

  /** Reads results in the order of their cursors until `stop` is called. Continues after restarts of the service. */
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

  /** Starts an HTTP server for callbacks on the loopback interface and resolves to its URL. */
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

  /** Returns the ids of acknowledged sessions for which the trainer has read no result yet. */
  outstanding(): string[] {
    return this.promised().filter((id) => !this.results.has(id));
  }

  /**
   * Resolves when every acknowledged session has a result. When `limitMs` have passed before that, records a violation that names some of
   * the sessions without a result, and resolves.
   */
  async untilSettled(limitMs: number): Promise<void> {
    if (await until(() => this.outstanding().length === 0, limitMs)) return;
    const open = this.outstanding();
    const some = open.slice(0, 3).join(', ');
    this.violations.push(`${open.length} sessions have no result after ${limitMs} ms, such as ${some}`);
  }

  /** Records a violation for an error that the service should not have returned. `doing` names the failed operation. */
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

function isTransient(error: unknown): boolean {
  return TRANSIENT.includes(asFloeError(error).code);
}

function digestOf({ cursor: _, ...result }: SessionResult): string {
  return createHash('sha256').update(JSON.stringify(result)).digest('hex');
}
