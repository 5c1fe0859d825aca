// S7: the wall clock jumps by an hour or two days, both ways, under server and gateways, and across restarts.
import { access, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { underTraffic } from '../traffic.mjs';

const LIBRARY = '/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1';
const HOUR = 3600;
const JUMPS = [HOUR, -HOUR, 48 * HOUR, -48 * HOUR, 0];

export const clocks = {
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
      return await underTraffic(options, async (world, trainer) => {
        for (let i = 0; i < runs; i++) {
          const jump = JUMPS[Math.floor(random() * JUMPS.length)];
          await writeFile(file, `${jump < 0 ? '-' : '+'}${Math.abs(jump)}`);
          await sleep(1_500);
          if (i % 5 === 4) {
            await world.servers[0].kill();
            await world.startServer(0);
          }
        }
        await writeFile(file, '+0');
        const counters = await trainer.insist((client) => client.status()).then((status) => status.counters);
        // Nobody was silent: a lease that ran out was ended by the wall clock.
        return { runs, note: `${counters.leases_expired} leases expired` };
      });
    } finally {
      await rm(dir, { recursive: true, force: true });
    }
  },
};
