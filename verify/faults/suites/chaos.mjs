// S5: connections that are slow, trickle, break in the middle of a reply or end early, between gateways and both engine and server.
import { setTimeout as sleep } from 'node:timers/promises';
import { ChaosProxy } from '../chaos-proxy.mjs';
import { underTraffic } from '../traffic.mjs';

/** How each new connection may be treated. */
function treatments(random) {
  return [
    {},
    { delayMs: () => random() * 50 },
    { delayMs: () => (random() < 0.02 ? 3_000 : 0) },
    { trickle: true },
    { resetAfter: () => (random() < 0.3 ? Math.floor(random() * 4_000) : null) },
    { cutAfter: () => (random() < 0.3 ? Math.floor(random() * 4_000) : null) },
    { refuse: true },
  ];
}
/** A treatment holds this long; then the next. */
const HOLD_MS = 700;
/** A service that answers nothing for so long, while connections come and go, does not recover from them. */
const GIVE_UP_MS = 180_000;

export const chaos = {
  id: 'S5',
  title: 'calls over broken connections are whole or typed failures',
  runs: { full: 10_000, quick: 150 },
  async run({ runs, random, postgres }) {
    const links = [];
    const options = {
      random,
      postgres,
      gateways: 0,
      feeder: { outstanding: 30 },
      gatewayConfig: () => ({ server_url: links[0].url, engines: [{ base_url: links[1].url }] }),
      prepare: async (world) => {
        links.push(await ChaosProxy.start(() => ({ host: '127.0.0.1', port: world.ports[0] })));
        links.push(await ChaosProxy.start(() => ({ host: '127.0.0.1', port: Number(new URL(world.sim.url).port) })));
        for (const i of [0, 1]) await world.startGateway(i);
      },
    };
    const kinds = treatments(random);
    try {
      return await underTraffic(options, async (world) => {
        let answered = { total: 0, atMs: performance.now() };
        while (world.sim.ledger.total < runs) {
          const { total } = world.sim.ledger;
          if (total > answered.total) answered = { total, atMs: performance.now() };
          if (performance.now() - answered.atMs > GIVE_UP_MS) {
            throw new Error(`S5: after ${total} model calls none has been answered for ${GIVE_UP_MS / 1000} s`);
          }
          for (const link of links) link.set(kinds[Math.floor(random() * kinds.length)]);
          await sleep(HOLD_MS);
        }
        for (const link of links) link.set({});
        return { runs: world.sim.ledger.total };
      });
    } finally {
      await Promise.all(links.map((link) => link.close()));
    }
  },
};
