import type { FloeClient } from '../../../src/client/index.ts';
import { sleep, systemClock } from '../../../src/core/clock.ts';
import type { RandomSource } from '../../../src/core/random.ts';
import { type SimServer, startSim } from '../../../src/sim/index.ts';
import { LEDGER_LIMIT } from '../service.ts';
import { underTraffic } from '../traffic.ts';
import type { Trainer } from '../trainer.ts';
import type { Suite } from './suite.ts';

/** Longest time in milliseconds in which replies end that are running when an engine is cleared. */
const REPLY_END_MS = 1_500;
/** Milliseconds for which a cleared engine is checked for new calls. */
const WATCH_MS = 500;

/** Suite S19: engines are cleared and registered again, paused and given new weights, while sessions run. */
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

/** Registers the engine `to`, clears all engines, checks that no engine is called afterwards, and registers `to` again. */
async function replaceEngine(trainer: Trainer, from: SimServer, to: SimServer): Promise<void> {
  const register = (client: FloeClient): Promise<unknown> => client.addEngine({ base_url: to.url, kind: 'vllm' });
  await trainer.untilServed(register);
  const { pending } = await trainer.untilServed((client) => client.clearEngines());
  if (pending.length > 0) trainer.violations.push(`clearing was not acknowledged by ${pending.join(', ')}`);
  // Running replies may still end, but no new reply may begin. The simulator counts a reply when it ends, so the check starts when running
  // replies have ended.
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
