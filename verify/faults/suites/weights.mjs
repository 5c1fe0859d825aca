// S19: engines are cleared and registered again, paused and given new weights, while sessions run.
import { setTimeout as sleep } from 'node:timers/promises';
import { startSim } from '../../dist/sim/server.js';
import { underTraffic } from '../traffic.mjs';

export const weights = {
  id: 'S19',
  title: 'engines and weights change under running sessions',
  runs: { full: 100, quick: 5 },
  stores: ['sqlite'],
  async run({ runs, random, progress }) {
    const other = await startSim({ ledgerLimit: 1_000_000, scaleOut: true });
    const sim = { scaleOut: true, tokenDelayMs: 2 };
    const options = {
      random,
      unknownVersions: 'mismatch',
      sim,
      gateways: 2,
      feeder: { outstanding: 100, pauseSeconds: 0.5 },
      gatewayConfig: () => ({ engines: [], pools: { init: 16, ready: 16, run: 64, postrun: 8 } }),
      prepare: async (world) => {
        world.extraLedgers = [other.ledger];
      },
    };
    try {
      return await underTraffic(options, async (world, trainer) => {
        const engines = [world.sim, other];
        const call = (work) => trainer.insist(work);
        await call((client) => client.addEngine({ base_url: engines[0].url, kind: 'vllm' }));
        for (let i = 0; i < runs; i++) {
          progress.show(`S19 ${i + 1} of ${runs} changes, ${trainer.results.size} sessions`);
          await oneChange(call, engines, i, random, trainer);
          await sleep(100 + random() * 300);
        }
        return { runs };
      });
    } finally {
      await other.close();
    }
  },
};

async function oneChange(call, engines, number, random, trainer) {
  if (random() < 0.5) {
    const from = engines[number % 2];
    const to = engines[(number + 1) % 2];
    await call((client) => client.addEngine({ base_url: to.url, kind: 'vllm' }));
    const change = await call((client) => client.clearEngines());
    const before = [from.ledger.total, to.ledger.total];
    if (change.pending.length > 0) trainer.wrongs.push(`clearing was not acknowledged by ${change.pending.join(', ')}`);
    // What was being answered may end; nothing new may begin. The simulator counts at the end of a reply, so replies get time to end.
    await sleep(1_500);
    const ended = [from.ledger.total, to.ledger.total];
    await sleep(500);
    for (const [k, engine] of [from, to].entries()) {
      if (engine.ledger.total !== ended[k])
        trainer.wrongs.push(
          `an engine that was cleared was called (${before[k]}, ${ended[k]}, ${engine.ledger.total})`,
        );
    }
    await call((client) => client.addEngine({ base_url: to.url, kind: 'vllm' }));
    return;
  }
  const mode = random() < 0.5 ? 'keep' : 'abort';
  await call((client) => client.pauseEngines(mode));
  for (const engine of engines) engine.updateWeights(`v${number + 1}`);
  await call((client) => client.setPolicyVersion(`v${number + 1}`));
  await call((client) => client.resumeEngines());
}
