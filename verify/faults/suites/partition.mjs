// S4: server, gateways, engine and trainer lose sight of each other: both ways, one way, on and off.
import { setTimeout as sleep } from 'node:timers/promises';
import { ChaosProxy } from '../chaos-proxy.mjs';
import { underTraffic } from '../traffic.mjs';

const KINDS = ['both', 'up', 'down'];
/** Shorter and longer than a lease. */
const LENGTHS_MS = [300, 1_500, 4_000];

export const partition = {
  id: 'S4',
  title: 'partitions heal without a double result',
  runs: { full: 100, quick: 6 },
  async run({ runs, random, postgres }) {
    const links = {};
    const options = {
      random,
      postgres,
      gateways: 0,
      feeder: { outstanding: 30, pauseSeconds: 0.5 },
      gatewayConfig: (i) => ({ server_url: links.server[i].url, engines: [{ base_url: links.engine[i].url }] }),
      prepare: async (world) => {
        const toServer = () => ({ host: '127.0.0.1', port: world.ports[0] });
        const toEngine = () => ({ host: '127.0.0.1', port: Number(new URL(world.sim.url).port) });
        links.server = await Promise.all([0, 1].map(() => ChaosProxy.start(toServer)));
        links.engine = await Promise.all([0, 1].map(() => ChaosProxy.start(toEngine)));
        for (const i of [0, 1]) await world.startGateway(i);
      },
    };
    try {
      return await underTraffic(options, async () => {
        for (let done = 0; done < runs; done++) {
          const link = links[random() < 0.7 ? 'server' : 'engine'][random() < 0.5 ? 0 : 1];
          const frozen = KINDS[Math.floor(random() * KINDS.length)];
          const flaps = random() < 0.3 ? 4 : 1;
          const lengthMs = LENGTHS_MS[Math.floor(random() * LENGTHS_MS.length)];
          for (let flap = 0; flap < flaps; flap++) {
            link.set({ frozen });
            await sleep(lengthMs / flaps);
            link.set({});
            await sleep(100);
          }
          await sleep(200);
        }
        return { runs };
      });
    } finally {
      await Promise.all([...(links.server ?? []), ...(links.engine ?? [])].map((link) => link.close()));
    }
  },
};
