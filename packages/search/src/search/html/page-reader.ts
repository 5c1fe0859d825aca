import { asFloeError, entryPath, FloeError, systemClock, Thread } from '@floe-rl/core';
import type { PageText } from './page-text.ts';
import type { PageOperations } from './worker.ts';

/** Time limit in milliseconds to read a page. */
const LIMIT_MS = 10_000;
/** Memory limit in MiB of the thread that reads a page. */
const MEMORY_MB = 256;

/**
 * Reads an untrusted page in a thread with a time limit and a memory limit. Rejects with `bad_request` for a page that exceeds them, with the
 * errors of `pageText`, or with the reason of `signal`.
 */
export async function readPage(html: string, signal: AbortSignal): Promise<PageText> {
  const thread = new Thread<PageOperations>(
    entryPath(import.meta.url, './worker.js'),
    (cause) => new FloeError('bad_request', `the page cannot be read${cause === null ? '' : `: ${cause}`}`),
    { env: {}, resourceLimits: { maxOldGenerationSizeMb: MEMORY_MB } },
  );
  const error = (): FloeError => new FloeError('bad_request', 'the page takes too long to read');
  try {
    return await thread.call('read', html, {
      signal,
      deadline: { clock: systemClock, limitMs: LIMIT_MS, error },
    });
  } catch (thrown) {
    signal.throwIfAborted();
    const { code, message } = asFloeError(thrown);
    throw new FloeError(code === 'setup_failed' ? code : 'bad_request', message);
  } finally {
    await thread.close();
  }
}
