// Runs the proxy under test in a separate process, which measures its own event loop and heap.
import { readFileSync } from 'node:fs';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { CaptureJournal, createEnginePools, createProxy, type ProxySession } from '@floe-rl/capture';
import { MIB, newSessionKey, sleep, systemClock } from '@floe-rl/core';
import { engineSpecSchema, samplingSchema, taskEngineSchema } from '@floe-rl/core/schema';
import { answerRequests, reportPort } from './process.ts';

const [, , engineUrl = '', directory = ''] = process.argv;

/**
 * Milliseconds to wait before the event loop's lag is read. This is longer than the interval of the histogram, which records a stall only
 * at the next tick.
 */
const SETTLE_MS = 50;

const engines = await createEnginePools([engineSpecSchema.parse({ base_url: engineUrl })], { clock: systemClock });
const journal = await CaptureJournal.open(directory);
const proxy = createProxy({ engines, journal, clock: systemClock });
await proxy.listen({ host: '127.0.0.1', port: 0 });
const lag = monitorEventLoopDelay({ resolution: 10 });
lag.enable();

const sessions = new Map<string, ProxySession>();
let opened = 0;
let lastRanMs = 0;

/** Returns the CPU time of this thread in milliseconds, as counted by the kernel. */
function threadMs(): number {
  return Number(readFileSync('/proc/thread-self/schedstat', 'utf8').split(' ')[0]) / 1e6;
}

answerRequests({
  async open() {
    const key = newSessionKey();
    const session = await proxy.open({
      sessionId: `ses_${opened++}`,
      attempt: 0,
      sampleIndex: 0,
      modelName: 'policy',
      engine: taskEngineSchema.parse({}),
      sampling: samplingSchema.parse({}),
      key,
      socketPath: null,
    });
    sessions.set(key, session);
    return { key };
  },
  async close(key) {
    const session = key === null ? undefined : sessions.get(key);
    if (key === null || session === undefined) throw new Error(`there is no session ${key}`);
    sessions.delete(key);
    await session.close();
    await journal.release(session.sessionId, session.attempt);
    return {};
  },
  /**
   * Returns the event loop's lag since the previous request, in milliseconds. `p99` and `max` include the histogram's interval of 10 ms.
   * `computed` is the CPU time of the event loop's thread: an upper bound on every stall that was not caused by other programs on the
   * machine.
   */
  async lag() {
    await sleep(systemClock, SETTLE_MS);
    const ranMs = threadMs();
    const seen = { p99: lag.percentile(99) / 1e6, max: lag.max / 1e6, computed: ranMs - lastRanMs };
    lastRanMs = ranMs;
    lag.reset();
    return seen;
  },
  async heap() {
    // Runs the garbage collector twice after a turn of the event loop, because some objects can be freed only after the turn, others only
    // after a first collection.
    await sleep(systemClock, 0);
    globalThis.gc?.();
    globalThis.gc?.();
    return { mb: process.memoryUsage().heapUsed / MIB };
  },
});
reportPort(Number(new URL(proxy.origin).port));
