import { entryPath, FloeError, Thread } from '@floe-rl/core';
import type { Encoding, ExportOptions } from '@floe-rl/data/trainers';
import type { FormatOperations } from './format-worker.ts';

/**
 * Makes records in trainers' formats in a separate thread. A batch may have millions of tokens, and converting them would block the server's
 * event loop. The thread is started with the first request.
 */
export class BatchFormatter {
  private thread: Thread<FormatOperations> | null = null;

  /**
   * Makes the records of a batch from its SessionResults as JSON texts. Rejects with the errors of `encodeExport`, and with `internal` when the
   * thread ends, for instance for lack of memory.
   */
  async format(results: readonly Uint8Array[], options: ExportOptions, encoding: Encoding): Promise<Buffer> {
    if (this.thread === null || this.thread.hasEnded) this.thread = startThread();
    const bytes = await this.thread.call('format', { results, options, encoding });
    return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  /** Ends the thread. Requests in progress are rejected. */
  async close(): Promise<void> {
    await this.thread?.close();
  }
}

function startThread(): Thread<FormatOperations> {
  return new Thread(
    entryPath(import.meta.url, './format-worker.js'),
    (cause) =>
      new FloeError(
        'internal',
        `the thread that makes records failed: ${cause ?? 'it ended'}; request a smaller batch`,
      ),
  );
}
