// Runs hostile and honest sessions side by side on a real floe: a server and a gateway node in processes of their own.
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { KIB, systemClock } from '@floe-rl/core';
import type { SessionResult } from '@floe-rl/core/schema';
import { Service } from '../faults/service.ts';
import type { Trainer } from '../faults/trainer.ts';
import { launched } from '../fixtures/launcher.ts';
import { until } from '../runner/until.ts';
import { residentKb } from '../services/processes.ts';
import { type Attack, modelCall, RIGHT_ANSWER, type Target, taskOf } from './attack.ts';
import { type Lag, readLag } from './lag.ts';
import { addressesOf, type Host, plant, runningTask, SECRET_VARIABLE } from './target.ts';

/** Number of sessions whose agents run at the same time. */
export const PARALLEL_SESSIONS = 64;
/** One honest session is submitted for this many attacks. */
const ATTACKS_PER_NEIGHBOUR = 3;
/** Minimum number of honest sessions that run during the attacks. The control run, which has no attacks, has exactly this many. */
const MIN_NEIGHBOURS = 24;
/** Maximum time in milliseconds until all sessions of a run have ended. */
const LIMIT_MS = 20 * 60_000;

/** Scenario of the simulated engine: its reply to a request for a title in JSON. */
const TITLE = {
  name: 'title',
  match: { contains: 'Write a title.' },
  rules: [{ reply: [{ text: '{"title":"Something"}' }] }],
};

/** An honest session: the id of its task and the reward that it must get. */
export type Neighbour = { readonly id: string; readonly reward: number };

export type Wave = {
  /** Results by task id. */
  readonly results: ReadonlyMap<string, SessionResult>;
  readonly neighbours: readonly Neighbour[];
  readonly lag: Lag;
  readonly seconds: number;
  /** Largest resident memory of the node in MiB since its start. */
  readonly nodePeakMb: number;
};

/**
 * A running floe with a trainer that reads all results. Its gateway was started by a launcher that left secrets, which attacks try to read.
 */
export class Storm {
  readonly service: Service;
  readonly trainer: Trainer;
  readonly controlUrl: string;
  /** Why the launcher could leave no secrets on this machine; `null` when it left them. */
  readonly launcherProblem: string | null;
  private waves = 0;

  static async start(host: Host): Promise<Storm> {
    const service = await Service.start({
      gateways: 0,
      // Leases are long, so that no attempt is lost when the machine is busy.
      serverConfig: { lease_seconds: 60, node_timeout_seconds: 60 },
      gatewayConfig: () => ({ pools: { init: 8, ready: 16, run: PARALLEL_SESSIONS, postrun: 12 } }),
      sim: { scenarios: [TITLE] },
      env: { [SECRET_VARIABLE]: host.secrets.environment },
    });
    const problem = await launcherProblem(host);
    const wrap = (command: readonly string[]): readonly string[] => launched(host.leftovers(), command);
    await service.start('gateway', 0, problem === null ? wrap : undefined);
    const trainer = service.trainer();
    void trainer.read();
    return new Storm(service, trainer, problem);
  }

  private constructor(service: Service, trainer: Trainer, problem: string | null) {
    this.service = service;
    this.trainer = trainer;
    this.launcherProblem = problem;
    this.controlUrl = addressesOf(service).controlUrl;
  }

  plant(host: Host): Promise<Target> {
    return plant(this.service, host, this.trainer);
  }

  /** Ends the session that ran during all attacks. */
  async cancelRunning(): Promise<void> {
    await this.trainer.cancel(runningTask(this.service));
    await until(() => this.trainer.outstanding().length === 0, LIMIT_MS);
  }

  /** Runs the attacks, `copies` times each, with honest sessions between them. `show` is called with the number of open sessions. */
  async run(attacks: readonly Attack[], copies: number, show: (open: number) => void): Promise<Wave> {
    const { trainer, service } = this;
    const wave = this.waves++;
    await readLag(this.controlUrl);
    const startedMs = systemClock.monotonicMs();
    const neighbours: Neighbour[] = [];
    const ids: string[] = [];
    const submit = async (id: string, session: Parameters<typeof taskOf>[2]): Promise<void> => {
      ids.push(id);
      await trainer.submit(taskOf(id, service.mark, session));
    };
    const addNeighbour = async (): Promise<void> => {
      const reward = neighbours.length % 2;
      const neighbour = { id: `honest-${wave}-${neighbours.length}`, reward };
      neighbours.push(neighbour);
      await submit(neighbour.id, honest(reward));
    };
    for (let copy = 0; copy < copies; copy++) {
      for (const [index, attack] of attacks.entries()) {
        if (index % ATTACKS_PER_NEIGHBOUR === 0) await addNeighbour();
        await submit(attackId(index, copy), attack);
      }
    }
    while (neighbours.length < MIN_NEIGHBOURS) await addNeighbour();
    const open = (): number => ids.filter((id) => this.resultOf(id) === undefined).length;
    await until(
      () => {
        const left = open();
        show(left);
        return left === 0;
      },
      LIMIT_MS,
      500,
    );
    const results = new Map<string, SessionResult>();
    for (const id of ids) {
      const result = this.resultOf(id);
      if (result !== undefined) results.set(id, result);
    }
    const seconds = (systemClock.monotonicMs() - startedMs) / 1000;
    const nodePeakMb = residentKb(service.child('gateway', 0).pid, 'peak') / KIB;
    return { results, neighbours, lag: await readLag(this.controlUrl), seconds, nodePeakMb };
  }

  private resultOf(taskId: string): SessionResult | undefined {
    return this.trainer.results.get(this.trainer.sessionsOf(taskId)[0] ?? '');
  }
}

/** Returns the task id of one copy of an attack. */
export function attackId(index: number, copy: number): string {
  return `attack-${index}-${copy}`;
}

/** Returns the work of an honest agent: several model calls, a test of its own, and an answer that is right or wrong. */
function honest(reward: number) {
  const answer = reward === 1 ? RIGHT_ANSWER : 'left';
  const command = `echo ${answer} > answer; sh tests/check.sh; echo "I wrote ${answer}." > /artifacts/report; sleep 0.5; ${modelCall('What is next?')}`;
  return { command: `${command} || exit 91` };
}

/**
 * Returns why this machine cannot start the gateway with a secret in its keyring and in its open files, which attacks then try to read;
 * `null` when it can.
 */
async function launcherProblem(host: Host): Promise<string | null> {
  const [program = '', ...args] = launched(host.leftovers(), ['/bin/true']);
  return promisify(execFile)(program, args).then(
    () => null,
    (error: { readonly stderr: string }) => error.stderr.trim(),
  );
}
