import { parentPort, workerData } from 'node:worker_threads';
import { asFloeError } from '@floe-rl/core';
import { pageText } from './page-text.ts';

/** A thread that reads one page, so that it can be stopped when the page takes too long. */
const html = String(workerData);
pageText(html).then(
  (page) => parentPort?.postMessage({ page }),
  (thrown: unknown) => {
    const { code, message } = asFloeError(thrown);
    parentPort?.postMessage({ error: { code, message } });
  },
);
