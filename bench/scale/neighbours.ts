// Measures how much slower a trainer becomes while another client burdens the server that both use.
import type { FloeClient } from '@floe-rl/client';
import { sleep, systemClock } from '@floe-rl/core';
import { inParallel, startChild } from '../child.ts';
import { type PairedRatio, pairedRatio } from '../report.ts';
import { GROUP } from './finished-rows.ts';
import { type ServerOptions, withServer } from './processes.ts';
import { pools, SUBMITTERS, task } from './rates.ts';

/** The command-line argument of bad-clients.ts, which is passed as JSON. */
export type BadClientsArguments = { readonly url: string; readonly nodes: number };

export type NeighbourOptions = {
  /** Returns the options of a new server. */
  readonly newServer: () => Promise<ServerOptions>;
  /** Sessions that the trainer runs in each round. */
  readonly sessions: number;
  readonly rounds: number;
  /** Number of nodes that restart at once. */
  readonly nodes: number;
  /** Number of results that stay unread, which is also the server's limit; five times as many sessions wait in the queue. */
  readonly unread: number;
};

/** For each burden, the trainer's sessions per second without the burden, divided by the rate with it. */
export type NeighbourFigures = {
  readonly slots: PairedRatio;
  readonly restarts: PairedRatio;
  readonly idleTrainer: PairedRatio;
};

/** Workers of each stage of the node that runs the sessions. */
const WIDTH = 16;
const TRAINER = 'measured';
const IDLE = 'idle';
const POLL_MS = 200;

/** Runs sessions of one trainer through their whole life. Resolves to the sessions per second. */
class Rounds {
  private after = 0;
  private readonly client: FloeClient;
  private readonly sessions: number;

  constructor(client: FloeClient, sessions: number) {
    this.client = client;
    this.sessions = sessions;
  }

  async run(): Promise<number> {
    const { client, sessions } = this;
    const startMs = systemClock.monotonicMs();
    const submitted = inParallel(sessions / GROUP, SUBMITTERS, () => client.submit(task(GROUP, { trainer: TRAINER })));
    let collected = 0;
    for await (const result of client.results({ after: this.after, pageSize: 500, trainer: TRAINER })) {
      this.after = result.cursor ?? this.after;
      if (++collected === sessions) break;
    }
    await submitted;
    return (sessions / (systemClock.monotonicMs() - startMs)) * 1000;
  }
}

/** Measures rounds without and with a burden in turns. `burdened` runs one round with it. */
async function compare(
  rounds: number,
  quiet: () => Promise<number>,
  burdened: () => Promise<number>,
): Promise<PairedRatio> {
  await quiet();
  const [without, beside]: [number[], number[]] = [[], []];
  for (let i = 0; i < rounds; i++) {
    without.push(await quiet());
    beside.push(await burdened());
  }
  const ratio = pairedRatio(without, beside);
  if (ratio === null) throw new Error('there was no round');
  return ratio;
}

/** All nodes of the bench call from one address. */
const CONFIG = { max_connections_per_address: 4_096 };

export async function neighbours(options: NeighbourOptions): Promise<NeighbourFigures> {
  const { newServer, sessions, rounds } = options;
  const node = { nodeId: 'node', mode: 'noop', pools: pools(WIDTH) } as const;
  const server = { ...(await newServer()), config: CONFIG };
  const { slots, restarts } = await withServer(server, async ({ client, url, startNode }) => {
    await startNode(node);
    const bad = await startBadClients({ url, nodes: options.nodes });
    try {
      const measured = new Rounds(client, sessions);
      const quiet = (): Promise<number> => measured.run();
      return {
        slots: await compare(rounds, quiet, async () => {
          await bad.request('startGreedy');
          const rate = await measured.run();
          const { refusals } = await bad.request('stopGreedy');
          if (refusals === 0) throw new Error('the node that requests a million slots made no request');
          return rate;
        }),
        restarts: await compare(rounds, quiet, async () => {
          const restarted = bad.request('restart');
          const rate = await measured.run();
          await restarted;
          return rate;
        }),
      };
    } finally {
      await bad.close();
    }
  });
  const idleTrainer = await withServer(await newServer(), (quiet) =>
    newServer().then((other) =>
      withServer({ ...other, config: { max_uncollected_results: options.unread } }, async (burdened) => {
        await quiet.startNode(node);
        await burdened.startNode(node);
        await leaveUnread(burdened.client, options.unread);
        const beside = new Rounds(burdened.client, sessions);
        const without = new Rounds(quiet.client, sessions);
        await beside.run();
        return compare(
          rounds,
          () => without.run(),
          () => beside.run(),
        );
      }),
    ),
  );
  return { slots, restarts, idleTrainer };
}

function startBadClients(argument: BadClientsArguments) {
  return startChild(new URL('./bad-clients.js', import.meta.url), [JSON.stringify(argument)]);
}

/** Submits sessions of a trainer that reads nothing, and waits until the server holds the rest of them back. */
async function leaveUnread(client: FloeClient, unread: number): Promise<void> {
  await inParallel((unread * 6) / GROUP, SUBMITTERS, () => client.submit(task(GROUP, { trainer: IDLE })));
  for (;;) {
    const { trainers } = await client.status();
    const idle = trainers.find(({ trainer }) => trainer === IDLE);
    if (idle?.held_back != null && idle.uncollected_results >= unread && idle.live === 0) return;
    await sleep(systemClock, POLL_MS);
  }
}
