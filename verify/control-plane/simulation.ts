import { Dice } from './dice.ts';
import { checkEnd, unfinished } from './final-checks.ts';
import { planOf } from './plan.ts';
import { Promptness } from './promptness.ts';
import { SimGateway } from './sim-gateway.ts';
import { SimServer } from './sim-server.ts';
import type { Violation } from './timeline.ts';
import { Trainer } from './trainer.ts';
import { type Parts, Troublemaker } from './troubles.ts';
import { World } from './world.ts';

/** How long everything may take to come to its end when nothing goes wrong any more, virtual ms. */
const QUIET_LIMIT_MS = 90_000;
/** What was under way when all seemed to be over shows within this time, ms. */
const AFTERMATH_MS = 1_500;

export type SimulationResult = {
  readonly seed: number;
  readonly violation: Violation | null;
  /** Everything that happened, one line each, oldest first. */
  readonly events: readonly string[];
  readonly virtualMs: number;
};

/** Lives through the world of one seed. The same seed gives the same events, on every machine. */
export async function simulate(seed: number): Promise<SimulationResult> {
  const plan = planOf(seed);
  const world = new World(plan, new Dice(seed + 2 ** 40));
  const { timeline } = world;
  const trainers = new Map<string, Trainer>();
  const servers = Array.from({ length: plan.servers }, (_, i) => new SimServer(`server-${i + 1}`, world, trainers));
  for (const trainer of plan.trainers) trainers.set(trainer.name, new Trainer(trainer, world, servers));
  const parts: Parts = { servers, gateways: plan.nodes.map((node) => new SimGateway(node, world, servers)) };
  for (const server of servers) server.start();
  for (const gateway of parts.gateways) gateway.start();
  for (const trainer of trainers.values()) trainer.start();
  new Troublemaker(world, parts).start();
  new Promptness(world).start();

  const limitMs = plan.troubleMs + QUIET_LIMIT_MS;
  await timeline.run(() => unfinished(world, trainers.values(), parts) === '', limitMs);
  const left = unfinished(world, trainers.values(), parts);
  if (left !== '') timeline.violate('liveness', `still open after ${QUIET_LIMIT_MS / 1000} s without trouble: ${left}`);
  if (left === '') await timeline.run(() => false, timeline.nowMs + AFTERMATH_MS);
  // The last thing that happens: what is checked is what is on disk.
  world.database.rows.losePower();
  if (timeline.violation === null) checkEnd(world, trainers.values());
  return { seed, violation: timeline.violation, events: timeline.events, virtualMs: timeline.nowMs };
}
