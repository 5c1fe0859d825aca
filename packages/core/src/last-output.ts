import type { Readable } from 'node:stream';
import { MIB } from './bytes.ts';
import type { Clock } from './clock.ts';
import { inputHandled } from './event-loop.ts';

/**
 * Maximum number of bytes that are read after the grace time, so that a process that keeps writing does not prolong the wait. The kernel
 * buffers less output than this for ended processes, so further bytes come from another process.
 */
const MAX_LAST_BYTES = 8 * MIB;

/** The outputs of processes that have ended. */
export type EndedOutputs = {
  /** Streams in flowing mode, which the caller reads. */
  readonly streams: readonly (Readable | null)[];
  /** Resolves when all of the streams have ended. */
  readonly closed: Promise<unknown>;
};

/**
 * Waits for the last output of processes that have ended, whose streams another process may hold open. Resolves when the streams have ended,
 * or when `graceMs` milliseconds have passed and what the processes wrote is read. The grace time alone does not suffice: a busy event loop
 * runs late timers before it reads what has arrived.
 */
export function lastOutput({ streams, closed }: EndedOutputs, graceMs: number, clock: Clock): Promise<void> {
  return new Promise((resolve) => {
    const drain = async (): Promise<void> => {
      let bytes = 0;
      let bytesBefore: number;
      const count = (chunk: Buffer): void => {
        bytes += chunk.length;
      };
      for (const stream of streams) stream?.on('data', count);
      do {
        bytesBefore = bytes;
        await inputHandled();
      } while (bytes > bytesBefore && bytes <= MAX_LAST_BYTES);
      resolve();
    };
    const cancel = clock.schedule(graceMs, () => void drain());
    void closed.then(() => {
      cancel();
      resolve();
    });
  });
}
