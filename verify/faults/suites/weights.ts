import type { FloeClient } from '@floe-rl/client';
import { type RandomSource, sleep, systemClock } from '@floe-rl/core';
import { type SimServer, startSim } from '@floe-rl/sim';
import { LEDGER_LIMIT } from '../service.ts';
import { underTraffic } from '../traffic.ts';
import type { Trainer } from '../trainer.ts';
import type { Suite } from './suite.ts';

/** Maximum remaining duration in ms of the replies that are running at the moment when all engines are removed. */
const REPLY_END_MS = 1_500;
/** Time in ms for which a removed engine is observed. It must not finish any reply in this time. */
const WATCH_MS = 500;

/** Suite S19: while sessions run, engines are removed and registered once more, paused, and given new weights. */
export const weights: Suite = {
  id: 'S19',
  title: 'engines and weights change under running sessions',
  runs: { full: 100, quick: 5 },
  stores: ['sqlite'],
  async run({ runs, random, progress }) {
    const other = await startSim({ ledgerLimit: LEDGER_LIMIT, scaleOut: true });
    try {
      return await underTraffic(
        {
          random,
          unknownVersions: 'mismatch',
          sim: { scaleOut: true, tokenDelayMs: 2 },
          gateways: 2,
          feeder: { outstanding: 100, pauseSeconds: 0.5 },
          gatewayConfig: () => ({ engines: [], pools: { init: 16, ready: 16, run: 64, postrun: 8 } }),
          prepare: async (service) => void service.extraLedgers.push(other.ledger),
        },
        async (service, trainer) => {
          const { sim } = service;
          await trainer.untilServed((client) => client.addEngine({ base_url: sim.url, kind: 'vllm' }));
          for (let i = 0; i < runs; i++) {
            progress.show(`S19 ${i + 1} of ${runs} changes, ${trainer.results.size} sessions`);
            const [from, to] = i % 2 === 0 ? [sim, other] : [other, sim];
            if (random() < 0.5) await replaceEngine(trainer, from, to);
            else await updateWeights(trainer, [sim, other], `v${i + 1}`, random);
            await sleep(systemClock, 100 + random() * 300);
          }
          return { runs };
        },
      );
    } finally {
      await other.close();
    }
  },
};

/** Registers the engine `to`, removes all engines, checks that no engine is called afterwards, and registers `to` once more. */
async function replaceEngine(trainer: Trainer, from: SimServer, to: SimServer): Promise<void> {
  const register = (client: FloeClient): Promise<unknown> => client.addEngine({ base_url: to.url, kind: 'vllm' });
  await trainer.untilServed(register);
  const { pending } = await trainer.untilServed((client) => client.clearEngines());
  if (pending.length > 0) trainer.violations.push(`clearing was not acknowledged by ${pending.join(', ')}`);
  // After the removal, running replies may end, but no new reply may start. The simulated engine counts a reply when it ends, so the check
  // begins after the time in which running replies end.
  await sleep(systemClock, REPLY_END_MS);
  const counts = [from, to].map((engine) => ({ engine, total: engine.ledger.total }));
  await sleep(systemClock, WATCH_MS);
  for (const { engine, total } of counts) {
    if (engine.ledger.total === total) continue;
    trainer.violations.push(`a cleared engine was called (${total} replies before, ${engine.ledger.total} after)`);
  }
  await trainer.untilServed(register);
}

async function updateWeights(
  trainer: Trainer,
  engines: readonly SimServer[],
  version: string,
  random: RandomSource,
): Promise<void> {
  const mode = random() < 0.5 ? 'keep' : 'abort';
  await trainer.untilServed((client) => client.pauseEngines(mode));
  for (const engine of engines) engine.updateWeights(version);
  await trainer.untilServed((client) => client.setPolicyVersion(version));
  await trainer.untilServed((client) => client.resumeEngines());
}
