import { access, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { sleep, systemClock } from '@floe-rl/core';
import { pick, underTraffic } from '../traffic.ts';
import type { Suite } from './suite.ts';

const LIBRARY = '/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1';
const HOUR_S = 3600;
const JUMPS_S = [HOUR_S, -HOUR_S, 48 * HOUR_S, -48 * HOUR_S, 0];
/** After this many jumps of the clock, the server is killed and restarted. */
const RESTART_INTERVAL = 5;

/** Suite S7: the wall clocks of server and gateways jump forward and back by an hour or by two days, also while the server restarts. */
export const clocks: Suite = {
  id: 'S7',
  title: 'wall clocks that jump end no lease and lose no order',
  runs: { full: 50, quick: 5 },
  whyNot: () =>
    access(LIBRARY).then(
      () => null,
      () => `${LIBRARY} is missing (Debian package libfaketime)`,
    ),
  async run({ runs, random, postgres }) {
    const dir = await mkdtemp(join(tmpdir(), 'floe-clock-'));
    const file = join(dir, 'offset');
    await writeFile(file, '+0');
    const env = {
      LD_PRELOAD: LIBRARY,
      FAKETIME_TIMESTAMP_FILE: file,
      FAKETIME_CACHE_DURATION: '1',
      FAKETIME_DONT_FAKE_MONOTONIC: '1',
    };
    try {
      const options = { random, postgres, env, gateways: 2, feeder: { outstanding: 20, pauseSeconds: 0.5 } };
      return await underTraffic(options, async (service, trainer) => {
        for (let i = 1; i <= runs; i++) {
          const jump = pick(random, JUMPS_S);
          await writeFile(file, `${jump < 0 ? '-' : '+'}${Math.abs(jump)}`);
          await sleep(systemClock, 1_500);
          if (i % RESTART_INTERVAL === 0) {
            await service.child('server', 0).kill();
            await service.startServer(0);
          }
        }
        await writeFile(file, '+0');
        const { counters } = await trainer.untilServed((client) => client.status());
        // All nodes keep sending heartbeats during this suite, so leases should expire only if a jump of the wall clock affects them. The
        // note reports their number.
        return { runs, note: `${counters.leases_expired} leases expired` };
      });
    } finally {
      await rm(dir, { recursive: true, force: true });
    }
  },
};
