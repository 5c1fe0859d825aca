import { sleep, systemClock } from '../../../src/core/clock.ts';
import { pick, underTraffic } from '../traffic.ts';
import type { Suite } from './suite.ts';

/** From a hiccup to several leases. */
const PAUSES_MS = [200, 1_000, 2_500, 4_500];

/** S3: gateways are suspended (SIGSTOP) for shorter and longer than a lease, and resume as if no time had passed. */
export const pause: Suite = {
  id: 'S3',
  title: 'paused nodes wake up fenced',
  runs: { full: 200, quick: 8 },
  async run({ runs, random, postgres }) {
    const options = { random, postgres, gateways: 3, feeder: { outstanding: 40, pauseSeconds: 1 } };
    return underTraffic(options, async (service) => {
      let done = 0;
      while (done < runs) {
        // Sometimes two of three at the same time; one always keeps working.
        const paused = service.gateways.filter(() => random() < 0.5).slice(0, 2);
        for (const child of paused) child.signal('SIGSTOP');
        await sleep(systemClock, pick(random, PAUSES_MS));
        for (const child of paused) child.signal('SIGCONT');
        done += paused.length;
        await sleep(systemClock, 300);
      }
      return { runs: done };
    });
  },
};
