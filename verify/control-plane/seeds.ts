// Runs simulations of many seeds in worker threads. This module is also the program of the threads, which may be that of another copy of
// the compiled tree.
import { pathToFileURL } from 'node:url';
import { isMainThread, parentPort, Worker } from 'node:worker_threads';
import { simulate } from './simulation.ts';

/** Number of seeds that a thread simulates before it reports: few, so that all threads end at about the same time. */
const BATCH_SEEDS = 25;
/**
 * A thread is replaced after this many batches. Node keeps the listeners of an `AbortSignal.any` signal until they are removed, which a
 * killed process of a simulation never does: each simulation stays in memory with 340 KB on average.
 */
const BATCHES_PER_THREAD = 40;
/** Number of last events that a failure carries. */
const SHOWN_EVENTS = 40;

/** A seed whose simulation violated an invariant. */
export type Failure = {
  readonly seed: number;
  /** Name of the invariant that was violated. */
  readonly invariant: string;
  readonly message: string;
  /** The last events before the violation, as text. */
  readonly events: readonly string[];
};

type Batch = { readonly from: number; readonly to: number };
type BatchReport = { readonly seeds: number; readonly failures: readonly Failure[] };

export type SeedRun = {
  /** Path of the compiled copy of this module that the threads run; the copies with a planted defect are in other trees. */
  readonly module: string;
  readonly from: number;
  readonly count: number;
  /** Number of threads that run concurrently. */
  readonly jobs: number;
  /** Ends the run early once this many seeds have failed. */
  readonly maxFailures: number;
  /** Called after each batch with the number of finished seeds and the failures so far. */
  readonly onProgress?: (done: number, failures: readonly Failure[]) => void;
};

/** Path of this module as compiled into the running tree. */
export const OWN_MODULE = import.meta.filename;

/** Simulates `count` seeds from `from` on. Resolves to the number of simulated seeds and the failures, ordered by seed. */
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
      // A simulation is garbage within milliseconds; a young generation that holds several saves most of the collector's work.
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

/** Runs in the thread: simulates each batch that it receives, and exits when it receives `null`. */
function work(port: NonNullable<typeof parentPort>): void {
  // Simulations create many errors, and most of their stack traces are never read.
  Error.stackTraceLimit = 3;
  const rejections: unknown[] = [];
  process.on('unhandledRejection', (reason) => rejections.push(reason));
  port.on('message', async (batch: Batch | null) => {
    if (batch === null) return process.exit(0);
    const failures: Failure[] = [];
    for (let seed = batch.from; seed < batch.to; seed++) {
      const { violation, events } = await simulate(seed);
      // Node reports unhandled rejections when the event loop turns.
      await new Promise((resolve) => setImmediate(resolve));
      const failure = violation ?? violationOf(rejections.splice(0));
      if (failure !== null) failures.push({ seed, ...failure, events: events.slice(-SHOWN_EVENTS) });
    }
    port.postMessage({ seeds: batch.to - batch.from, failures } satisfies BatchReport);
  });
}

/** Returns the violation of an unhandled rejection, which is a defect of the product as well; `null` without one. */
function violationOf([reason]: readonly unknown[]): { readonly invariant: string; readonly message: string } | null {
  if (reason === undefined) return null;
  const text = reason instanceof Error ? reason.stack : String(reason);
  return { invariant: 'no defects', message: `unhandled rejection: ${text}` };
}

if (!isMainThread && parentPort !== null) work(parentPort);
