// S16: cancels at every moment of a session's life, twice, of tasks and of single sessions, against completion.
import { setTimeout as sleep } from 'node:timers/promises';
import { percentile } from '../../../bench/report.mjs';
import { processesWith } from '../child.mjs';
import { underTraffic } from '../traffic.mjs';
import { curlAgent } from '../world.mjs';

/** Looking for a session's processes reads all of /proc; every so many cancels are enough for a percentile. */
const MEASURE_EVERY = 20;
const PARALLEL = 8;
/** Promised is one second; a machine that does much else gets this long before it is called a failure. */
const SLOT_LIMIT_MS = 5_000;

export const cancel = {
  id: 'S16',
  title: 'cancel wins or loses as a whole, and frees its slot',
  runs: { full: 10_000, quick: 200 },
  async run({ runs, random, postgres, progress }) {
    const options = { random, postgres, gateways: 2, feeder: { outstanding: 10 } };
    return underTraffic(options, async (world, trainer) => {
      const freed = [];
      let done = 0;
      const worker = async () => {
        while (done < runs) {
          const number = ++done;
          await cancelOne(world, trainer, random, number, freed);
          progress.show(`S16 ${done} of ${runs} cancels`);
        }
      };
      await Promise.all(Array.from({ length: PARALLEL }, worker));
      const p99 = percentile(freed, 0.99) ?? 0;
      if (p99 > SLOT_LIMIT_MS) trainer.wrongs.push(`p99 from cancel to processes gone is ${p99.toFixed(0)} ms`);
      return { runs, note: `processes gone after ${p99.toFixed(0)} ms (p99 of ${freed.length})` };
    });
  },
};

async function cancelOne(world, trainer, random, number, freed) {
  const mark = `${world.marker.split('=')[1]}-c${number}`;
  const id = `task-${mark}`;
  await trainer.submit(
    world.task({
      task_id: id,
      num_samples: 1 + Math.floor(random() * 3),
      agent: {
        // Half of them would go on for long, and ignore being asked to stop.
        custom_shell: random() < 0.5 ? `trap '' TERM; ${curlAgent(1)}; sleep 30` : curlAgent(2),
        env: { FLOE_FAULT_MARK: world.marker.split('=')[1], FLOE_CANCEL_MARK: mark },
      },
    }),
  );
  await sleep(random() ** 2 * 800);
  const calls = random() < 0.2 ? [trainer.cancel(id), trainer.cancel(id)] : [cancelSomehow(trainer, id, random)];
  const [status] = await Promise.all(calls);
  const cancelledMs = performance.now();
  const ended = new Set(status.results.filter((one) => one.outcome !== 'cancelled').map((one) => one.session_id));
  if (number % MEASURE_EVERY === 0) freed.push(await untilGone(mark, cancelledMs));
  await ofTask(trainer, id);
  for (const session of trainer.tasks.get(id).ids) {
    const { result } = trainer.results.get(session) ?? {};
    if (result !== undefined && result.outcome !== 'cancelled' && !ended.has(session)) {
      trainer.wrongs.push(`session ${session} ended as ${result.outcome} after its cancel was acknowledged`);
    }
  }
}

/** The task as a whole, or each of its sessions. */
async function cancelSomehow(trainer, id, random) {
  if (random() < 0.7) return trainer.cancel(id);
  const views = await Promise.all(
    trainer.tasks.get(id).ids.map((session) => trainer.insist((client) => client.cancelSession(session))),
  );
  return { results: views.map((view) => view.summary).filter((summary) => summary !== null) };
}

async function untilGone(mark, sinceMs) {
  const marker = `FLOE_CANCEL_MARK=${mark}`;
  while (processesWith(marker).length > 0 && performance.now() - sinceMs < 2 * SLOT_LIMIT_MS) await sleep(10);
  return performance.now() - sinceMs;
}

async function ofTask(trainer, id) {
  const open = () => trainer.tasks.get(id).ids.some((session) => !trainer.results.has(session));
  for (const deadline = performance.now() + 30_000; open() && performance.now() < deadline; ) await sleep(20);
}
