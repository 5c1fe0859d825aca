import { type RandomSource, sleep, systemClock } from '@floe-rl/core';
import { ChaosProxy, type Treatment } from '../chaos-proxy.ts';
import { pick, randomIndex, underTraffic } from '../traffic.ts';
import type { Suite } from './suite.ts';

/** Time in ms for which the proxies treat connections in one way, for example with a delay, before they change to another. */
const HOLD_MS = 700;
/**
 * Maximum time in ms without a finished reply of the engine. When it is exceeded, the service has not recovered from the broken connections
 * and the suite fails.
 */
const GIVE_UP_MS = 180_000;

/** Returns the ways in which the proxies treat connections. Each is used for `HOLD_MS` at a time. */
function treatments(random: RandomSource): Treatment[] {
  const replyBytes = (): number | null => (random() < 0.3 ? randomIndex(random, 4_000) : null);
  return [
    {},
    { delayMs: () => random() * 50 },
    { delayMs: () => (random() < 0.02 ? 3_000 : 0) },
    { trickle: true },
    { resetAfter: replyBytes },
    { cutAfter: replyBytes },
    { refuse: true },
  ];
}

/**
 * Suite S5: the connections between gateways, server and engine are slow, transfer single bytes, break in the middle of a reply, or are
 * refused.
 */
export const chaos: Suite = {
  id: 'S5',
  title: 'calls over broken connections are whole or typed failures',
  runs: { full: 10_000, quick: 150 },
  async run({ runs, random, postgres }) {
    const links: ChaosProxy[] = [];
    const urlOf = (link: ChaosProxy | undefined): string => link?.url ?? '';
    const kinds = treatments(random);
    try {
      return await underTraffic(
        {
          random,
          postgres,
          gateways: 0,
          feeder: { outstanding: 30 },
          gatewayConfig: () => ({ server_url: urlOf(links[0]), engines: [{ base_url: urlOf(links[1]) }] }),
          prepare: async (service) => {
            links.push(await ChaosProxy.start(() => ({ host: '127.0.0.1', port: service.port() })));
            links.push(await ChaosProxy.start(() => ({ host: '127.0.0.1', port: service.simPort() })));
            for (const i of [0, 1]) await service.startGateway(i);
          },
        },
        async ({ sim: { ledger } }) => {
          let last = { total: 0, atMs: systemClock.monotonicMs() };
          while (ledger.total < runs) {
            const nowMs = systemClock.monotonicMs();
            if (ledger.total > last.total) last = { total: ledger.total, atMs: nowMs };
            if (nowMs - last.atMs > GIVE_UP_MS) {
              throw new Error(`S5: after ${last.total} model calls none has finished for ${GIVE_UP_MS / 1000} s`);
            }
            for (const link of links) link.set(pick(random, kinds));
            await sleep(systemClock, HOLD_MS);
          }
          for (const link of links) link.set({});
          return { runs: ledger.total };
        },
      );
    } finally {
      for (const link of links) link.close();
    }
  },
};
