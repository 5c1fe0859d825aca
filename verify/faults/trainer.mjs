// A trainer that remembers everything it was promised: what the oracle holds the service to.
import { createHash } from 'node:crypto';
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { FloeClient } from '../dist/client/index.js';

/** Between tries while the service is away. */
const AGAIN_MS = 50;
/** Errors that say "not now". Everything else is an answer. */
const NOT_NOW = new Set(['peer_unreachable', 'not_ready', 'store_unavailable', 'overloaded']);

export class Trainer {
  constructor({ url, token = null, name = 'default', clock = () => performance.now() }) {
    this.url = url;
    this.token = token;
    this.name = name;
    this.clock = clock;
    /** task id -> { sessions: Set, samples, cancelled, submittedMs } of acknowledged submits. */
    this.tasks = new Map();
    /** session id -> { result, digest, count } as read by cursor. */
    this.results = new Map();
    /** Results for ids that nobody was promised, results that changed, cursors that went back. */
    this.wrongs = [];
    /** Sessions whose engine lied in a way that no client can see: their tokens are what it said, and not what it sampled. */
    this.believed = new Set();
    this.callbacks = new Map();
    this.cancelled = new Set();
    this.cursor = 0;
    this.stopped = false;
    this.client = this.connect();
  }

  connect() {
    return new FloeClient({ url: this.url(), token: this.token });
  }

  /** Repeats `call` until the service answers it. Throws what the service answers for good. */
  async insist(call, signal) {
    for (;;) {
      try {
        return await call(this.client);
      } catch (error) {
        if (!NOT_NOW.has(error.code) || this.stopped || signal?.aborted) throw error;
        await sleep(AGAIN_MS);
        // A server that came back may have another port.
        const old = this.client;
        this.client = this.connect();
        await old.close().catch(() => {});
      }
    }
  }

  async submit(task) {
    const reply = await this.insist((client) => client.submit({ trainer: this.name, ...task }));
    const known = this.tasks.get(reply.task_id);
    if (known !== undefined && known.ids.join() !== reply.session_ids.join()) {
      this.wrongs.push(`task ${reply.task_id} was acknowledged with two lists of sessions`);
    }
    this.tasks.set(reply.task_id, { ids: reply.session_ids, task, submittedMs: this.clock() });
    return reply;
  }

  async cancel(taskId) {
    const status = await this.insist((client) => client.cancel(taskId));
    this.cancelled.add(taskId);
    return status;
  }

  /** Reads results by cursor until `stop`, across restarts of the service. */
  async read() {
    while (!this.stopped) {
      try {
        for await (const result of this.client.results({ after: this.cursor, pageSize: 50 })) {
          this.take(result);
          if (this.stopped) return;
        }
      } catch (error) {
        if (this.stopped) return;
        if (!NOT_NOW.has(error.code)) {
          this.wrongs.push(`reading results: ${error.code}: ${error.message}`);
          return;
        }
        await sleep(AGAIN_MS);
        this.client = this.connect();
      }
    }
  }

  take(result) {
    if (result.cursor <= this.cursor) this.wrongs.push(`cursor ${result.cursor} after ${this.cursor}`);
    this.cursor = result.cursor;
    const digest = digestOf(result);
    const earlier = this.results.get(result.session_id);
    if (earlier !== undefined)
      this.wrongs.push(
        `session ${result.session_id} has two results (${earlier.digest === digest ? 'equal' : 'different'})`,
      );
    this.results.set(result.session_id, { result, digest });
  }

  /** A listener for callbacks; `answer(n)` gives the status of the n-th request. */
  async listen(answer = () => 200) {
    let requests = 0;
    const server = createServer((request, reply) => {
      const chunks = [];
      request.on('data', (chunk) => chunks.push(chunk));
      request.on('end', () => {
        const status = answer(++requests, request);
        if (status === null) return; // never answers
        if (status >= 200 && status < 300) this.takeCallback(request, Buffer.concat(chunks));
        reply.writeHead(status).end();
      });
      request.on('error', () => {});
    });
    await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
    this.listener = server;
    return `http://127.0.0.1:${server.address().port}/done`;
  }

  takeCallback(request, body) {
    const key = request.headers['idempotency-key'];
    const digest = createHash('sha256').update(body).digest('hex');
    const known = this.callbacks.get(key);
    if (known !== undefined && known.digest !== digest) this.wrongs.push(`callback ${key} came with two bodies`);
    this.callbacks.set(key, { digest, count: (known?.count ?? 0) + 1, body: JSON.parse(body) });
  }

  promised() {
    return [...this.tasks.values()].flatMap((task) => task.ids);
  }

  outstanding() {
    return this.promised().filter((id) => !this.results.has(id));
  }

  /** Resolves when every promised session has a result; rejects after `limitMs`, naming some. */
  async settled(limitMs) {
    const deadline = this.clock() + limitMs;
    while (this.outstanding().length > 0) {
      if (this.clock() > deadline) {
        const open = this.outstanding();
        throw new Error(
          `${open.length} sessions have no result after ${limitMs} ms, e.g. ${open.slice(0, 3).join(', ')}`,
        );
      }
      await sleep(20);
    }
  }

  async close() {
    this.stopped = true;
    this.listener?.closeAllConnections();
    this.listener?.close();
    await this.client.close().catch(() => {});
  }
}

function digestOf({ cursor: _, ...result }) {
  return createHash('sha256').update(JSON.stringify(result)).digest('hex');
}
