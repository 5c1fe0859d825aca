import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { type ErrorCode, entryPath, FloeError } from '@floe-rl/core';
import type { Encoding, ExportOptions } from '@floe-rl/data/trainers';
import type { FormatReply, FormatRequest } from './format-worker.ts';

type Waiting = { readonly resolve: (bytes: Buffer) => void; readonly reject: (error: FloeError) => void };

/**
 * Makes records in trainers' formats, in a thread of its own, because a batch may have millions of tokens, which would block the server's
 * event loop. The thread is started with the first request.
 */
export class BatchFormatter {
  private worker: Worker | null = null;
  private lastId = 0;
  private readonly waiting = new Map<number, Waiting>();

  /**
   * Makes the records of a batch from its SessionResults as JSON texts. Rejects with the errors of `encodeExport`, and with `internal` when the
   * thread ends, for instance for lack of memory.
   */
  format(results: readonly Uint8Array[], options: ExportOptions, encoding: Encoding): Promise<Buffer> {
    this.worker ??= this.start();
    const request: FormatRequest = { id: ++this.lastId, results, options, encoding };
    return new Promise((resolve, reject) => {
      this.waiting.set(request.id, { resolve, reject });
      this.worker?.postMessage(request);
    });
  }

  /** Ends the thread. Requests in progress are rejected. */
  async close(): Promise<void> {
    const { worker } = this;
    if (worker === null) return;
    const ended = once(worker, 'exit');
    await worker.terminate();
    await ended;
  }

  private start(): Worker {
    const worker = new Worker(entryPath(import.meta.url, './format-worker.js'));
    // A server that has nothing else to do may end while the thread waits for requests.
    worker.unref();
    worker.on('message', (reply: FormatReply) => this.settle(reply));
    let cause = 'it ended';
    worker.on('error', ({ message }: Error) => {
      cause = message;
    });
    worker.on('exit', () => {
      if (this.worker === worker) this.worker = null;
      const failed = new FloeError(
        'internal',
        `the thread that makes records failed: ${cause}; request a smaller batch`,
      );
      for (const { reject } of this.waiting.values()) reject(failed);
      this.waiting.clear();
    });
    return worker;
  }

  private settle(reply: FormatReply): void {
    const waiting = this.waiting.get(reply.id);
    this.waiting.delete(reply.id);
    if ('bytes' in reply) {
      waiting?.resolve(Buffer.from(reply.bytes));
      return;
    }
    const { code, message, details } = reply.error;
    waiting?.reject(new FloeError(code as ErrorCode, message, details as Record<string, unknown>));
  }
}
