import { Worker } from 'node:worker_threads';
import { abortAfter, type ErrorCode, entryPath, FloeError, onAbort, systemClock } from '@floe-rl/core';
import type { PageText } from './page-text.ts';

/** Time limit in milliseconds to read a page. */
const LIMIT_MS = 10_000;
/** Memory limit in MiB of the thread that reads a page. */
const MEMORY_MB = 256;

type Reply = { readonly page: PageText } | { readonly error: { readonly code: ErrorCode; readonly message: string } };

/**
 * Reads an untrusted page in a thread with a time limit and a memory limit. Rejects with `bad_request` for a page that exceeds them, with the
 * errors of `pageText`, or with the reason of `signal`.
 */
export async function readPage(html: string, parent: AbortSignal): Promise<PageText> {
  const late = (): FloeError => new FloeError('bad_request', 'the page takes too long to read');
  const { signal, release } = abortAfter(systemClock, LIMIT_MS, late, parent);
  const worker = new Worker(entryPath(import.meta.url, './worker.js'), {
    workerData: html,
    env: {},
    resourceLimits: { maxOldGenerationSizeMb: MEMORY_MB },
  });
  try {
    const reply = await new Promise<Reply>((resolve, reject) => {
      worker.once('message', resolve);
      worker.once('error', (error) =>
        reject(new FloeError('bad_request', `the page cannot be read: ${error.message}`)),
      );
      worker.once('exit', () => reject(new FloeError('bad_request', 'the page cannot be read')));
      onAbort(signal, () => reject(signal.reason));
    });
    if ('page' in reply) return reply.page;
    throw new FloeError(reply.error.code === 'setup_failed' ? 'setup_failed' : 'bad_request', reply.error.message);
  } finally {
    release();
    await worker.terminate();
  }
}
