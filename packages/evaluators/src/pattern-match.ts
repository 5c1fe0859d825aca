import { Worker } from 'node:worker_threads';
import { asFloeError, type Clock, onAbort } from '@floe-rl/core';

/** Flags of a pattern: all matches, `^` and `$` at the ends of lines, and Unicode characters. */
export const PATTERN_FLAGS = 'gmu';

/**
 * Program of the thread that matches a pattern. It sends `started`, and then a list with one text of the last match: the first group, or else
 * the whole match. The element is `null` without a match.
 */
const THREAD_SOURCE = `
const { parentPort, workerData } = require('node:worker_threads');
const pattern = new RegExp(workerData.pattern, workerData.flags);
parentPort.postMessage('started');
let last = null;
for (const match of workerData.text.matchAll(pattern)) last = match;
parentPort.postMessage([last === null ? null : (last[1] ?? last[0])]);
`;

type PatternMatch =
  | { readonly timedOut: true }
  /** The first group of the last match, or else the whole match; `null` without a match. */
  | { readonly timedOut: false; readonly value: string | null };

/**
 * Matches a regular expression in a separate thread with a time limit. Some patterns would take years on some texts, and the agent chose the
 * text. The limit does not include the start of the thread, which takes seconds on a busy machine. Rejects with the reason of `signal`.
 */
export function lastMatch(
  pattern: string,
  text: string,
  limitMs: number,
  clock: Clock,
  signal: AbortSignal,
): Promise<PatternMatch> {
  const workerData = { pattern, text, flags: PATTERN_FLAGS };
  const limits = { maxOldGenerationSizeMb: 256 };
  const thread = new Worker(THREAD_SOURCE, { eval: true, workerData, env: {}, resourceLimits: limits });
  let cancelLimit = (): void => {};
  let release = (): void => {};
  return new Promise<PatternMatch>((resolve, reject) => {
    release = onAbort(signal, () => reject(signal.reason));
    thread.on('message', (message: 'started' | [string | null]) => {
      if (message !== 'started') resolve({ timedOut: false, value: message[0] });
      else cancelLimit = clock.schedule(limitMs, () => resolve({ timedOut: true }));
    });
    thread.once('error', (error) => reject(asFloeError(error, 'evaluator_failed')));
  }).finally(async () => {
    release();
    cancelLimit();
    await thread.terminate();
  });
}
