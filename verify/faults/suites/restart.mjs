// S17: gateways die with their spawn helpers at once; what they leave is ended by their successor, and only that.
import { setTimeout as sleep } from 'node:timers/promises';
import { childrenOf, killPid, processesWith } from '../child.mjs';
import { underTraffic } from '../traffic.mjs';
import { curlAgent } from '../world.mjs';

export const restart = {
  id: 'S17',
  title: 'orphans are ended by their own gateway, and no other',
  runs: { full: 100, quick: 4 },
  async run({ runs, random, postgres, progress }) {
    const options = { random, postgres, gateways: 2, feeder: { outstanding: 0, callbacks: false } };
    return underTraffic(options, async (world, trainer) => {
      for (let i = 0; i < runs; i++) {
        progress.show(`S17 ${i + 1} of ${runs}`);
        await oneDeath(world, trainer, i, random);
      }
      return { runs };
    });
  },
};

async function oneDeath(world, trainer, number, random) {
  const mark = `${world.marker.split('=')[1]}-r${number}`;
  // A first attempt stays, deaf and in a session of its own; later ones end.
  const stay = `[ "$FLOE_ATTEMPT" = 1 ] && { (trap '' TERM HUP; setsid sh -c "trap '' TERM HUP; sleep 20" & wait); }; true`;
  const { session_ids: ids } = await trainer.submit(
    world.task({
      task_id: `task-${mark}`,
      num_samples: 8,
      agent: {
        custom_shell: `${curlAgent(1)}; ${stay}`,
        env: { FLOE_FAULT_MARK: world.marker.split('=')[1], FLOE_RESTART_MARK: mark },
      },
    }),
  );
  const marker = `FLOE_RESTART_MARK=${mark}`;
  const runningOn = async () => {
    const views = await Promise.all(ids.map((id) => trainer.client.session(id)));
    return new Map(views.map((view) => [view.session_id, view]));
  };
  for (const deadline = performance.now() + 20_000; performance.now() < deadline; await sleep(50)) {
    if ([...(await runningOn()).values()].every((view) => view.turns >= 1)) break;
  }
  const before = await runningOn();
  const victim = number % 2;
  const helpers = childrenOf(world.gateways[victim].pid);
  if (random() < 0.5) for (const pid of helpers) killPid(pid);
  await world.gateways[victim].kill();
  for (const pid of helpers) killPid(pid);
  await world.startGateway(victim);
  const others = [...before.values()].filter((view) => view.node_id === `node-${1 - victim}`);
  const now = await runningOn();
  for (const view of others) {
    if (now.get(view.session_id).attempt !== view.attempt) {
      trainer.wrongs.push(`session ${view.session_id} of the living gateway was started again`);
    }
  }
  if (others.length > 0 && processesWith(marker).length === 0)
    trainer.wrongs.push('the living gateway lost its agents');
  // The others' first attempts would stay for 20 s; they have shown what they had to.
  await trainer.cancel(`task-${mark}`);
  const open = () => ids.some((id) => !trainer.results.has(id));
  for (const deadline = performance.now() + 30_000; open() && performance.now() < deadline; ) await sleep(20);
  for (const deadline = performance.now() + 10_000; processesWith(marker).length > 0; await sleep(50)) {
    if (performance.now() < deadline) continue;
    trainer.wrongs.push(`processes of ${mark} are left: ${processesWith(marker).join(', ')}`);
    return;
  }
}
