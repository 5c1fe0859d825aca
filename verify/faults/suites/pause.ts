import { sleep, systemClock } from '@floe-rl/core';
import { pick, underTraffic } from '../traffic.ts';
import type { Suite } from './suite.ts';

/** Times in ms for which gateways are suspended. Some are shorter and some longer than a lease, which lasts 2 s. */
const PAUSES_MS = [200, 1_000, 2_500, 4_500];

/** Suite S3: gateways are suspended with SIGSTOP, for less or more time than a lease lasts, and then resumed. */
export const pause: Suite = {
  id: 'S3',
  title: 'paused nodes wake up fenced',
  runs: { full: 200, quick: 8 },
  async run({ runs, random, postgres }) {
    const options = { random, postgres, gateways: 3, feeder: { outstanding: 40, pauseSeconds: 1 } };
    return underTraffic(options, async (service) => {
      let done = 0;
      while (done < runs) {
        // At most two of the three gateways are suspended at the same time, so that one gateway can always work.
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
