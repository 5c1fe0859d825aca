// What most suites do: run a world under steady traffic, do it harm, let it come to rest, and hold it to its promises.
import { setTimeout as sleep } from 'node:timers/promises';
import { Feeder } from './feeder.mjs';
import { complaints, World } from './world.mjs';

/** How long everything may take to end once the harm has ended. */
const SETTLE_MS = 90_000;

/**
 * `options`: those of World, and `feeder`: those of Feeder. `harm(world, trainer)` returns what else is to be told, as an object; it may
 * add sentences to `trainer.wrongs`. Resolves to a row of the report.
 */
export async function underTraffic({ random, feeder: feederOptions = {}, prepare, ...options }, harm) {
  const world = await World.start(options);
  try {
    await prepare?.(world);
    const trainer = world.trainer();
    const callbackUrl = feederOptions.callbacks === false ? null : await trainer.listen();
    void trainer.read();
    const feeder = new Feeder(world, trainer, { random, callbackUrl, ...feederOptions });
    const feeding = feeder.run().catch((error) => trainer.wrongs.push(`submitting: ${error.code}: ${error.message}`));
    const told = await harm(world, trainer, feeder);
    feeder.stop();
    await feeding;
    await trainer.settled(SETTLE_MS).catch((error) => trainer.wrongs.push(error.message));
    await callbacksSettled(trainer);
    const counters = await trainer
      .insist((client) => client.status())
      .then((status) => status.counters)
      .catch(() => ({}));
    const verdict = await world.verdict();
    return rowOf(verdict, { sessions: trainer.results.size, counters, ...told });
  } finally {
    await world.close();
  }
}

/** A suite's row: counts of what is wrong, and the sentences that say it. */
export function rowOf(verdict, told = {}) {
  const texts = complaints(verdict);
  const count = (kind) => verdict[kind].length;
  return {
    lost: count('lost'),
    duplicated: count('duplicated'),
    leaked: count('leaked'),
    wrong: count('wrong'),
    slowestMs: verdict.slowestRecoveryMs,
    texts,
    ...told,
  };
}

/** Waits until every callback that was asked for has come; those that never do are wrongs. */
export async function callbacksSettled(trainer) {
  const wanted = [...trainer.tasks].filter(([, { task }]) => task.callback_url).map(([id]) => `floe-task-${id}`);
  const deadline = performance.now() + SETTLE_MS;
  while (wanted.some((key) => !trainer.callbacks.has(key)) && performance.now() < deadline) await sleep(50);
  for (const key of wanted) if (!trainer.callbacks.has(key)) trainer.wrongs.push(`callback ${key} never came`);
}
