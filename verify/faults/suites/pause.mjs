// S3: gateways are stopped (SIGSTOP) for longer and shorter than a lease, and wake up believing that nothing happened.
import { setTimeout as sleep } from 'node:timers/promises';
import { underTraffic } from '../traffic.mjs';

/** From a hiccup to several leases. */
const PAUSE_MS = [200, 1_000, 2_500, 4_500];

export const pause = {
  id: 'S3',
  title: 'paused nodes wake up fenced',
  runs: { full: 200, quick: 8 },
  async run({ runs, random, postgres }) {
    const options = { random, postgres, gateways: 3, feeder: { outstanding: 40, pauseSeconds: 1 } };
    return underTraffic(options, async (world) => {
      let done = 0;
      while (done < runs) {
        // Two of three at once now and then: the third goes on.
        const victims = world.gateways.filter(() => random() < 0.5).slice(0, 2);
        for (const child of victims) child.signal('SIGSTOP');
        await sleep(PAUSE_MS[Math.floor(random() * PAUSE_MS.length)]);
        for (const child of victims) child.signal('SIGCONT');
        done += victims.length;
        await sleep(300);
      }
      return { runs: done };
    });
  },
};
