import { sleep, systemClock } from '@floe-rl/core';
import { ChaosProxy } from '../chaos-proxy.ts';
import { pick, underTraffic } from '../traffic.ts';
import type { Suite } from './suite.ts';

const DIRECTIONS = ['both', 'up', 'down'] as const;
/** Durations of network partitions in ms. Some are shorter and some longer than a lease, which lasts 2 s. */
const LENGTHS_MS = [300, 1_500, 4_000];
/** Number of times that an intermittent partition starts and ends. */
const FLAPS = 4;

/**
 * Suite S4: gateways cannot reach the server or the engine for a while. The partition affects one or both directions and may be
 * intermittent.
 */
export const partition: Suite = {
  id: 'S4',
  title: 'partitions heal without a double result',
  runs: { full: 100, quick: 6 },
  async run({ runs, random, postgres }) {
    const toServer: ChaosProxy[] = [];
    const toEngine: ChaosProxy[] = [];
    const urlOf = (link: ChaosProxy | undefined): string => link?.url ?? '';
    try {
      return await underTraffic(
        {
          random,
          postgres,
          gateways: 0,
          feeder: { outstanding: 30, pauseSeconds: 0.5 },
          gatewayConfig: (i) => ({ server_url: urlOf(toServer[i]), engines: [{ base_url: urlOf(toEngine[i]) }] }),
          prepare: async (service) => {
            for (const i of [0, 1]) {
              toServer.push(await ChaosProxy.start(() => ({ host: '127.0.0.1', port: service.port() })));
              toEngine.push(await ChaosProxy.start(() => ({ host: '127.0.0.1', port: service.simPort() })));
              await service.startGateway(i);
            }
          },
        },
        async () => {
          for (let done = 0; done < runs; done++) {
            const link = pick(random, random() < 0.7 ? toServer : toEngine);
            const frozen = pick(random, DIRECTIONS);
            const flaps = random() < 0.3 ? FLAPS : 1;
            const lengthMs = pick(random, LENGTHS_MS);
            for (let flap = 0; flap < flaps; flap++) {
              link.set({ frozen });
              await sleep(systemClock, lengthMs / flaps);
              link.set({});
              await sleep(systemClock, 100);
            }
            await sleep(systemClock, 200);
          }
          return { runs };
        },
      );
    } finally {
      for (const link of [...toServer, ...toEngine]) link.close();
    }
  },
};
