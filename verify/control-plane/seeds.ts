// Simulates many seeds in worker threads. This module is also the entry point of the threads. They may load it from another copy of the
// compiled tree, which contains a planted defect.
import { pathToFileURL } from 'node:url';
import { isMainThread, parentPort, Worker } from 'node:worker_threads';
import { simulate } from './simulation.ts';

/** Number of seeds that a thread simulates before it reports. It is small, so that all threads end at about the same time. */
const BATCH_SEEDS = 25;
/**
 * Number of batches after which a thread is replaced, because each simulation leaks 340 KB of memory on average: Node keeps the listeners
 * of an `AbortSignal.any` signal until they are removed, and a killed simulated process never removes its own.
 */
const BATCHES_PER_THREAD = 40;
/** Number of events, the last before the violation, that a failure contains. */
const SHOWN_EVENTS = 40;

/** A seed whose simulation violated an invariant of floe. */
export type Failure = {
  readonly seed: number;
  /** Name of the invariant that was violated. */
  readonly invariant: string;
  readonly message: string;
  /** The last events before the violation, one line of text each. */
  readonly events: readonly string[];
};

type Batch = { readonly from: number; readonly to: number };
type BatchReport = { readonly seeds: number; readonly failures: readonly Failure[] };

export type SeedRun = {
  /** Path of the compiled copy of this module that the threads load. A copy with a planted defect is in another tree. */
  readonly module: string;
  readonly from: number;
  readonly count: number;
  /** Number of threads that run concurrently. */
  readonly jobs: number;
  /** Ends the run early once this many seeds have failed. */
  readonly maxFailures: number;
  /** Called after each batch with the number of simulated seeds and all failures so far. */
  readonly onProgress?: (done: number, failures: readonly Failure[]) => void;
};

/** Path of this module in the compiled tree that is running. */
export const OWN_MODULE = import.meta.filename;

/** Simulates the `count` seeds that start at `from`. Resolves to the number of simulated seeds and the failures, ordered by seed. */
export async function simulateSeeds(
  run: SeedRun,
): Promise<{ readonly seeds: number; readonly failures: readonly Failure[] }> {
  const end = run.from + run.count;
  let next = run.from;
  let done = 0;
  const failures: Failure[] = [];
  const isFinished = (): boolean => next >= end || failures.length >= run.maxFailures;
  const takeBatch = (): Batch | null => {
    if (isFinished()) return null;
    const batch = { from: next, to: Math.min(end, next + BATCH_SEEDS) };
    next = batch.to;
    return batch;
  };
  const runThread = (): Promise<void> =>
    new Promise((resolve, reject) => {
      let batches = 0;
      // The objects of a simulation are garbage within milliseconds. A young generation that can hold several simulations saves most of the
      // garbage collector's work.
      const worker = new Worker(pathToFileURL(run.module), {
        execArgv: [],
        resourceLimits: { maxYoungGenerationSizeMb: 64 },
      });
      const postBatch = (): void => worker.postMessage(batches++ < BATCHES_PER_THREAD ? takeBatch() : null);
      worker.on('message', (report: BatchReport) => {
        done += report.seeds;
        failures.push(...report.failures);
        run.onProgress?.(done, failures);
        postBatch();
      });
      worker.on('error', reject);
      worker.on('exit', () => resolve());
      postBatch();
    });
  const lane = async (): Promise<void> => {
    while (!isFinished()) await runThread();
  };
  await Promise.all(Array.from({ length: Math.min(run.jobs, Math.ceil(run.count / BATCH_SEEDS)) }, lane));
  return { seeds: done, failures: failures.sort((a, b) => a.seed - b.seed) };
}

/** The worker thread: simulates each batch of seeds that it receives over `port`, and exits when it receives `null`. */
function work(port: NonNullable<typeof parentPort>): void {
  // Shortens stack traces to save time: simulations create many errors, and most of their traces are never read.
  Error.stackTraceLimit = 3;
  const rejections: unknown[] = [];
  process.on('unhandledRejection', (reason) => rejections.push(reason));
  port.on('message', async (batch: Batch | null) => {
    if (batch === null) return process.exit(0);
    const failures: Failure[] = [];
    for (let seed = batch.from; seed < batch.to; seed++) {
      const { violation, events } = await simulate(seed);
      // Node reports unhandled rejections only when the event loop turns, so the thread waits for one turn before it reads them.
      await new Promise((resolve) => setImmediate(resolve));
      const failure = violation ?? violationOf(rejections.splice(0));
      if (failure !== null) failures.push({ seed, ...failure, events: events.slice(-SHOWN_EVENTS) });
    }
    port.postMessage({ seeds: batch.to - batch.from, failures } satisfies BatchReport);
  });
}

/** Returns a violation for the first unhandled rejection, which is a defect of floe as well; `null` when there is none. */
function violationOf([reason]: readonly unknown[]): { readonly invariant: string; readonly message: string } | null {
  if (reason === undefined) return null;
  const text = reason instanceof Error ? reason.stack : String(reason);
  return { invariant: 'no defects', message: `unhandled rejection: ${text}` };
}

if (!isMainThread && parentPort !== null) work(parentPort);
