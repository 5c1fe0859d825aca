// Runs the cheats and their honest twins with one back end on a real floe: a server and a gateway node in processes of their own.
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { SessionResult } from '@floe-rl/core/schema';
import { Service } from '../faults/service.ts';
import { until } from '../runner/until.ts';
import { type Cheat, type Place, promptOf, type SessionPlan, type Surroundings, taskOf } from './cheat.ts';
import { allCheats } from './cheats.ts';
import { JUDGE } from './works.ts';

/** Maximum time in milliseconds until all sessions of a round have ended. */
const LIMIT_MS = 30 * 60_000;
/** Number of sessions whose agents run at the same time. */
const PARALLEL_SESSIONS = 6;
const PROGRESS_INTERVAL_MS = 500;
const SOLUTION = 'def add(a, b):\n    return a + b\n';

export type RoundOptions = {
  readonly backend: Place['backend'];
  readonly image: string;
  readonly surroundings: Surroundings;
  /** Folder below which prepare actions and evaluators read files of the host. */
  readonly uploadRoot: string;
  /** Only cheats whose class or name contains this text run. */
  readonly only: string;
  /** One of every this many cheats runs; 1 for all of them. */
  readonly every: number;
  /** Whether the cheats run without the protections that stop them, and without honest twins. */
  readonly unprotected: boolean;
  /** Settings of the gateway that name the engines of the back ends. */
  readonly gateway: { readonly docker_socket?: string; readonly apptainer_command?: string };
};

/** How one session ended, and whether that is right. */
export type Row = {
  readonly backend: string;
  readonly kind: Cheat['kind'];
  readonly cheat: string;
  readonly role: 'cheat' | 'honest' | 'unprotected';
  readonly outcome: string | null;
  readonly reward: number | null;
  readonly failure: string | null;
  readonly isFlagged: boolean;
  readonly isRight: boolean;
  /** The end of the session's report when the session ended wrongly; `null` when it ended right. */
  readonly report: string | null;
};

type Planned = SessionPlan & { readonly cheat: Cheat; readonly role: Row['role'] };

export async function runRound(options: RoundOptions, show: (left: number) => void): Promise<Row[]> {
  const cheats = allCheats(options.surroundings).filter(
    ({ kind, name }, index) => `${kind} ${name}`.includes(options.only) && index % options.every === 0,
  );
  const plans = options.unprotected ? unprotectedPlans(cheats) : plansOf(cheats);
  const web = createServer((_, reply) => reply.end(SOLUTION)).listen(0, '127.0.0.1');
  await once(web, 'listening');
  const service = await startService(options, plans);
  try {
    const webUrl = `http://127.0.0.1:${(web.address() as AddressInfo).port}/`;
    const place = { backend: options.backend, image: options.image, mark: service.mark, webUrl };
    const trainer = service.trainer();
    void trainer.read();
    for (const plan of plans) await trainer.submit(taskOf(plan, place));
    const resultOf = ({ id }: Planned): SessionResult | undefined =>
      trainer.results.get(trainer.sessionsOf(id)[0] ?? '');
    const isDone = (): boolean => {
      const left = plans.filter((plan) => resultOf(plan) === undefined).length;
      show(left);
      return left === 0;
    };
    await until(isDone, LIMIT_MS, PROGRESS_INTERVAL_MS);
    return plans.map((plan) => rowOf(plan, resultOf(plan), options.backend));
  } finally {
    await service.close();
    web.close();
  }
}

function plansOf(cheats: readonly Cheat[]): Planned[] {
  return cheats.flatMap((cheat, index): Planned[] => {
    const { work, says = null, command, alsoHonest } = cheat;
    const solve = alsoHonest === undefined ? work.solve : `${work.solve}\n${alsoHonest}`;
    return [
      { id: `cheat-${index}`, cheat, role: 'cheat', work, command, says },
      { id: `honest-${index}`, cheat, role: 'honest', work, command: solve, says: work.answer ?? null },
    ];
  });
}

function unprotectedPlans(cheats: readonly Cheat[]): Planned[] {
  return cheats.flatMap((cheat, index): Planned[] => {
    const { unprotected: work, says = null, command } = cheat;
    return work === undefined ? [] : [{ id: `open-${index}`, cheat, role: 'unprotected', work, command, says }];
  });
}

function startService(options: RoundOptions, plans: readonly Planned[]): Promise<Service> {
  const scenarios = plans.flatMap((plan) =>
    plan.says === null
      ? []
      : [{ name: plan.id, match: { contains: promptOf(plan) }, rules: [{ reply: [{ text: plan.says }] }] }],
  );
  const sim = { scenarios: [...scenarios, JUDGE] };
  return Service.start({
    sim,
    judge: true,
    // Leases are long, so that no attempt is lost when the machine is busy.
    serverConfig: { lease_seconds: 60, node_timeout_seconds: 60 },
    gatewayConfig: () => ({
      ...options.gateway,
      default_backend: options.backend,
      allow_host_network: true,
      upload_roots: [options.uploadRoot],
      pools: { init: 3, ready: 3, run: PARALLEL_SESSIONS, postrun: 3 },
    }),
  });
}

/** Returns the row of a session; `undefined` stands for a session that did not end. */
export function rowOf(
  { cheat, role }: Pick<Planned, 'cheat' | 'role'>,
  result: SessionResult | undefined,
  backend: string,
): Row {
  const { outcome = null, reward = null, attempt, reward_details: details = {}, agent, error } = result ?? {};
  const wantedOutcome = role === 'honest' ? 'completed' : (cheat.outcome ?? 'completed');
  const isFlagged = role === 'cheat' && result !== undefined && cheat.isFlagged?.(result) === true;
  const hasRightReward = reward === (role === 'cheat' ? 0 : 1) || isFlagged;
  const isRight = outcome === wantedOutcome && hasRightReward && attempt === 1;
  const failure = typeof details.failure === 'string' ? details.failure : null;
  const report = isRight ? null : JSON.stringify({ attempt, error, details, agent }).slice(0, 1_500);
  return { backend, kind: cheat.kind, cheat: cheat.name, role, outcome, reward, failure, isFlagged, isRight, report };
}
