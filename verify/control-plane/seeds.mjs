// Runs simulations of many seeds in threads. Also the thread itself: it loads the simulation of one `dist` folder.
import { pathToFileURL } from 'node:url';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';

/** Seeds that a thread is given at a time: few enough that all threads end together. */
const BATCH = 25;
/**
 * A thread is replaced after so many batches. Node keeps what listens to a signal of `AbortSignal.any` until it stops to, which a
 * killed process of a world never does: each world stays in memory, 340 KB on average.
 */
const BATCHES_OF_A_THREAD = 40;
/** The last events of a world that broke a promise. */
const SHOWN_EVENTS = 40;

/**
 * Simulates `count` seeds from `from` on. Calls `onDone(seedsSoFar, failuresSoFar)` after each batch; ends early once there are
 * `maxFailures`. Resolves to the failures, by seed: `{ seed, invariant, message, events }`.
 */
export async function simulateSeeds({ dist, from, count, jobs, maxFailures, onDone = () => {} }) {
  const end = from + count;
  let next = from;
  let done = 0;
  const failures = [];
  const take = () => {
    if (next >= end || failures.length >= maxFailures) return null;
    const batch = { from: next, to: Math.min(end, next + BATCH) };
    next = batch.to;
    return batch;
  };
  const lane = async () => {
    while (next < end && failures.length < maxFailures) await runThread();
  };
  const runThread = () =>
    new Promise((resolve, reject) => {
      let batches = 0;
      // A world is garbage within milliseconds: room for some of them spares most of the collector's work.
      const resourceLimits = { maxYoungGenerationSizeMb: 64 };
      const worker = new Worker(new URL(import.meta.url), { workerData: { dist }, execArgv: [], resourceLimits });
      const giveWork = () => worker.postMessage(batches++ < BATCHES_OF_A_THREAD ? take() : null);
      worker.on('message', ({ seeds, found }) => {
        done += seeds;
        failures.push(...found);
        onDone(done, failures);
        giveWork();
      });
      worker.on('error', reject);
      worker.on('exit', resolve);
      giveWork();
    });
  await Promise.all(Array.from({ length: Math.min(jobs, Math.ceil(count / BATCH)) }, lane));
  return { seeds: done, failures: failures.sort((a, b) => a.seed - b.seed) };
}

async function work() {
  // Errors are part of many worlds, and nobody reads where most of them were made.
  Error.stackTraceLimit = 3;
  const { simulate } = await import(pathToFileURL(`${workerData.dist}/simulation/index.js`).href);
  const rejections = [];
  process.on('unhandledRejection', (thrown) => rejections.push(thrown));
  parentPort.on('message', async (batch) => {
    if (batch === null) process.exit(0);
    const found = [];
    for (let seed = batch.from; seed < batch.to; seed++) {
      const { violation, events } = await simulate(seed);
      // Rejections that nobody handles are told when the event loop turns.
      await new Promise(setImmediate);
      const [rejection] = rejections.splice(0);
      const broken =
        violation ??
        (rejection && { invariant: 'no defects', message: `nobody handled: ${rejection?.stack ?? rejection}` });
      if (broken) found.push({ seed, ...broken, events: events.slice(-SHOWN_EVENTS) });
    }
    parentPort.postMessage({ seeds: batch.to - batch.from, found });
  });
}

if (!isMainThread) await work();
