import { type RandomSource, sleep, systemClock } from '@floe-rl/core';
import type { SessionSummary } from '@floe-rl/core/schema';
import { percentile } from '../../../bench/report.ts';
import { until } from '../../runner/until.ts';
import { processesWith } from '../../services/processes.ts';
import { curlAgent, type Service } from '../service.ts';
import { randomIndex, underTraffic } from '../traffic.ts';
import type { Trainer } from '../trainer.ts';
import type { Suite } from './suite.ts';

/**
 * One of this many cancels is measured for the time until its processes have ended. Not every cancel is measured, because finding a
 * session's processes requires reading all of /proc, which is slow.
 */
const MEASURE_INTERVAL = 20;
const PARALLEL = 8;
/**
 * Maximum 99th percentile of the time in ms between a cancel and the end of the session's processes. floe guarantees one second. The limit
 * is higher because the machine may be busy with other work.
 */
const MAX_RELEASE_MS = 5_000;

/**
 * Suite S16: cancels tasks and single sessions at every point of a session's life, also at the moment when the session completes. Some are
 * cancelled twice.
 */
export const cancel: Suite = {
  id: 'S16',
  title: 'cancel wins or loses as a whole, and frees its slot',
  runs: { full: 10_000, quick: 200 },
  async run({ runs, random, postgres, progress }) {
    const options = { random, postgres, gateways: 2, feeder: { outstanding: 10 } };
    return underTraffic(options, async (service, trainer) => {
      const releaseMs: number[] = [];
      let done = 0;
      const worker = async (): Promise<void> => {
        while (done < runs) {
          const number = ++done;
          const measured = await cancelOne(service, trainer, random, number);
          if (measured !== null) releaseMs.push(measured);
          progress.show(`S16 ${done} of ${runs} cancels`);
        }
      };
      await Promise.all(Array.from({ length: PARALLEL }, worker));
      const p99 = percentile(releaseMs, 0.99) ?? 0;
      if (p99 > MAX_RELEASE_MS) {
        trainer.violations.push(`99 % of cancelled sessions lost their processes only within ${p99.toFixed(0)} ms`);
      }
      return { runs, note: `processes gone after ${p99.toFixed(0)} ms (p99 of ${releaseMs.length})` };
    });
  },
};

/**
 * Submits and cancels one task. Returns the time in ms from the cancel until the task's processes had ended; `null` when it was not
 * measured.
 */
async function cancelOne(
  service: Service,
  trainer: Trainer,
  random: RandomSource,
  number: number,
): Promise<number | null> {
  const mark = `${service.mark}-c${number}`;
  const id = `task-${mark}`;
  await trainer.submit(
    service.task({
      task_id: id,
      num_samples: 1 + randomIndex(random, 3),
      agent: {
        harness: 'shell',
        // Half of the agents sleep for another 30 s after their model call and ignore SIGTERM.
        custom_shell: random() < 0.5 ? `trap '' TERM; ${curlAgent(1)}; sleep 30` : curlAgent(2),
        env: { FLOE_FAULT_MARK: service.mark, FLOE_CANCEL_MARK: mark },
      },
    }),
  );
  await sleep(systemClock, random() ** 2 * 800);
  const isTwice = random() < 0.2;
  const [summaries = []] = await Promise.all(
    isTwice ? [cancelTask(trainer, id), cancelTask(trainer, id)] : [cancelSomehow(trainer, id, random)],
  );
  const cancelledMs = systemClock.monotonicMs();
  const endedBefore = new Set(
    summaries.filter(({ outcome }) => outcome !== 'cancelled').map(({ session_id }) => session_id),
  );
  let releaseMs: number | null = null;
  if (number % MEASURE_INTERVAL === 0) {
    await until(() => processesWith(`FLOE_CANCEL_MARK=${mark}`).length === 0, 2 * MAX_RELEASE_MS, 10);
    releaseMs = systemClock.monotonicMs() - cancelledMs;
  }
  const sessions = trainer.sessionsOf(id);
  await until(() => sessions.every((session) => trainer.results.has(session)), 30_000);
  for (const session of sessions) {
    const outcome = trainer.results.get(session)?.outcome;
    if (outcome !== undefined && outcome !== 'cancelled' && !endedBefore.has(session)) {
      trainer.violations.push(`session ${session} ended as ${outcome} after its cancel was acknowledged`);
    }
  }
  return releaseMs;
}

async function cancelTask(trainer: Trainer, id: string): Promise<readonly SessionSummary[]> {
  return (await trainer.cancel(id)).results;
}

/** Cancels either the whole task or each of its sessions separately. Returns the summaries of the sessions that have ended. */
async function cancelSomehow(trainer: Trainer, id: string, random: RandomSource): Promise<readonly SessionSummary[]> {
  if (random() < 0.7) return cancelTask(trainer, id);
  const views = await Promise.all(
    trainer.sessionsOf(id).map((session) => trainer.untilServed((client) => client.cancelSession(session))),
  );
  return views.flatMap(({ summary }) => (summary === null ? [] : [summary]));
}
