import { NodeApi } from '@floe-rl/client';
import {
  asFloeError,
  type Backoff,
  backoffMs,
  type CallOptions,
  type Clock,
  FloeError,
  floeErrors,
  newId,
  settleAll,
  sleep,
  systemClock,
  undoAll,
} from '@floe-rl/core';
import type { NodeProcess } from '@floe-rl/core/schema';
import { createGatewayMetrics, type GatewayMetrics, type Logger } from '@floe-rl/observe';
import { HELPER_NAME, labelOf } from '@floe-rl/sandbox';
import { AggregatorRegistry } from 'prom-client';
import type { GatewayConfig } from '../node/config.ts';
import { openControlListener } from '../node/control-listener.ts';
import { type Gateway, reportReaped } from '../node/gateway.ts';
import type { NodeReports } from '../node/node-reports.ts';
import { stageSizes } from '../node/stage-pools.ts';
import { openStateDir } from '../recovery/state-dir.ts';
import { reapUnusedDirs } from '../recovery/worker-dirs.ts';
import { mergeEngines, sumOfStages } from './merged-heartbeat.ts';
import type { ParentOperations, WorkerReports, WorkerSetup } from './protocol.ts';
import { ServerCalls } from './server-calls.ts';
import { shareOf } from './shares.ts';
import { WorkerProcess } from './worker-process.ts';

/** Backoff before a process is restarted. It grows with each end of the process soon after its start. */
const RESTART: Backoff = { baseMs: 200, maxMs: 30_000 };
/** Time after its start in milliseconds within which the end of a process counts as early. */
const EARLY_MS = 60_000;
/** Time in milliseconds within which a process must have closed its sessions when the node closes; a suspended one never does. */
const CLOSE_MS = 30_000;
/** Time in milliseconds that a status or the metrics wait for a process. The numbers of a slower process are left out. */
const REPORT_MS = 5_000;
/** Number of early ends in succession after which a process is not restarted. */
const MAX_EARLY_ENDS = 5;

type Worker = {
  readonly setup: WorkerSetup;
  process: WorkerProcess | null;
  proxyOrigin: string;
  state: NodeProcess['state'];
  ends: number;
};

/**
 * Starts a node whose sessions run in `config.processes` child processes. This process makes the calls to the server that concern the whole
 * node, and serves its control listener. A child process that ends is restarted, and its sessions return to the queue. Resolves and rejects
 * as `startGateway` does.
 */
export async function startProcesses(config: GatewayConfig, { log }: { readonly log: Logger }): Promise<Gateway> {
  const clock = systemClock;
  const cleanups: (() => Promise<unknown>)[] = [];
  const close = (): Promise<void> => undoAll(cleanups);
  const shares = Array.from({ length: config.processes }, (_, index) => shareOf(config, index));
  const nodeLog = log.child({ node_id: config.node_id });
  try {
    const state = await openStateDir(config.state_dir, clock);
    cleanups.push(() => state.release());
    const metrics = createGatewayMetrics();
    reportReaped(state.reaped, metrics, nodeLog);
    // If this node had one process before, it kept its records in the state directory itself.
    const unusedDirs = [config.state_dir, ...(await reapUnusedDirs(config.state_dir, config.processes, clock))];
    const instance = newId('proc', clock);
    const { server_url: url, token, server_tls: tls, node_id: nodeId } = config;
    const api = new NodeApi({ url, token, tls: tls ?? undefined, nodeId, instance, clock });
    cleanups.push(() => api.close());
    const node = new NodeProcesses({
      setups: shares.map((share, index) => ({
        config: share,
        index,
        count: config.processes,
        instance,
        logLevel: log.level,
        unusedDirs: index === 0 ? unusedDirs : [],
      })),
      // The next gateway of this directory ends the processes by this label if they outlive this one.
      label: labelOf({ id: state.ownerId, instance }, HELPER_NAME),
      config,
      api,
      clock,
      metrics,
      log: nodeLog,
    });
    cleanups.push(() => node.close());
    await node.start();
    const control = await openControlListener(config, node, { clock, log: nodeLog });
    cleanups.push(() => control.close());
    return {
      nodeId,
      controlUrl: control.url,
      proxyOrigin: node.proxyOrigins[0] ?? '',
      proxyOrigins: node.proxyOrigins,
      takenOver: node.failed,
      recovered: () => node.recovered(),
      drain: () => node.drain(),
      close,
    };
  } catch (error) {
    await close();
    throw error;
  }
}

type NodeProcessesDeps = {
  readonly setups: readonly WorkerSetup[];
  readonly label: Readonly<Record<string, string>>;
  readonly config: GatewayConfig;
  readonly api: NodeApi;
  readonly clock: Clock;
  readonly metrics: GatewayMetrics;
  readonly log: Logger;
};

/** The child processes of a node. */
class NodeProcesses implements NodeReports {
  private readonly deps: NodeProcessesDeps;
  private readonly workers: readonly Worker[];
  private readonly server: ServerCalls;
  private readonly closing = new AbortController();
  private supervision: Promise<unknown> = Promise.resolve();
  private draining = false;
  private resolveFailed: (error: FloeError) => void = () => {};
  /** Resolves when a newer process has registered with the node's id, or when no child process is left. */
  readonly failed: Promise<FloeError>;

  constructor(deps: NodeProcessesDeps) {
    this.deps = deps;
    this.failed = new Promise((resolve) => {
      this.resolveFailed = resolve;
    });
    this.workers = deps.setups.map((setup) => ({ setup, process: null, proxyOrigin: '', state: 'starting', ends: 0 }));
    const { pools, dispatch_policy } = deps.config;
    const sizes = stageSizes(dispatch_policy, pools);
    this.server = new ServerCalls({
      api: deps.api,
      clock: deps.clock,
      log: deps.log,
      sizes: {
        max_init_workers: sizes.init,
        ready_size: sizes.ready,
        max_run_workers: sizes.run,
        max_postrun_workers: sizes.postrun,
      },
      states: () => this.workers.map(({ state, ends }) => ({ state, ends })),
    });
  }

  get proxyOrigins(): readonly string[] {
    return this.workers.map(({ proxyOrigin }) => proxyOrigin);
  }

  /** Starts all processes. Rejects with the error of the first that cannot be started. */
  async start(): Promise<void> {
    await settleAll(this.workers.map((worker) => this.launch(worker)));
    this.supervision = Promise.all(this.workers.map((worker) => this.supervise(worker)));
  }

  async recovered(): Promise<void> {
    await Promise.all(this.running().map(({ channel }) => channel.call('recovered', undefined).catch(() => {})));
  }

  /** Resolves when every process has delivered the results of its sessions or has ended. */
  async drain(): Promise<void> {
    this.draining = true;
    for (const { process, state } of this.workers) if (state === 'starting') process?.end();
    await Promise.all(this.running().map(({ channel }) => channel.call('drain', undefined).catch(() => {})));
  }

  async close(): Promise<void> {
    this.closing.abort(new FloeError('not_ready', 'the node is shutting down'));
    await Promise.all(
      this.workers.map(async ({ process, state }) => {
        if (process !== null && state === 'running') {
          await process.channel.call('close', undefined, this.limit(CLOSE_MS)).catch(() => {});
        }
        process?.end();
        await process?.ended;
      }),
    );
    await this.supervision;
    await this.server.close();
  }

  async status(): ReturnType<NodeReports['status']> {
    const { node_id, pools, dispatch_policy } = this.deps.config;
    const all = (await this.reports()).map(({ status }) => status);
    const starts: Record<string, { starting: number; waiting: number }> = {};
    for (const [backend, { starting, waiting }] of all.flatMap((one) => Object.entries(one.starts))) {
      const sum = starts[backend] ?? { starting: 0, waiting: 0 };
      starts[backend] = { starting: sum.starting + starting, waiting: sum.waiting + waiting };
    }
    return {
      node_id,
      pools,
      dispatch_policy,
      metrics: { ...sumOfStages(all.map(({ metrics }) => metrics)), processes: this.server.processes() },
      starts,
      engines: mergeEngines(all.map(({ engines }) => engines)),
      sessions: all.flatMap(({ sessions }) => sessions),
    };
  }

  /** Returns the sums of the metrics of all processes, including this one. */
  async registry(): ReturnType<NodeReports['registry']> {
    const own = await this.deps.metrics.registry.getMetricsAsJSON();
    const reports = await this.reports();
    return AggregatorRegistry.aggregate([own, ...reports.map(({ metrics }) => metrics)]);
  }

  async engineMetrics(): Promise<string> {
    const [first] = this.running();
    return first === undefined ? '' : first.channel.call('engineMetrics', undefined);
  }

  /** Returns the options of a call to a process that rejects after a time limit in milliseconds. */
  private limit(limitMs: number): CallOptions {
    const error = (): FloeError => new FloeError('deadline_exceeded', 'a process of the node does not answer');
    return { deadline: { clock: this.deps.clock, limitMs, error } };
  }

  private async reports(): Promise<WorkerReports[]> {
    const reports = this.running().map(({ channel }) =>
      channel.call('reports', undefined, this.limit(REPORT_MS)).catch(() => []),
    );
    return (await Promise.all(reports)).flat();
  }

  private running(): WorkerProcess[] {
    return this.workers.flatMap(({ process, state }) => (process !== null && state === 'running' ? [process] : []));
  }

  private async launch(worker: Worker): Promise<void> {
    const { setup } = worker;
    const launched = new WorkerProcess(this.operationsFor(setup.index), this.deps.label);
    worker.process = launched;
    worker.proxyOrigin = await launched.start(setup);
    worker.state = 'running';
    this.deps.log.info({ process: setup.index, pid: launched.pid }, 'a process of the node has started');
  }

  private operationsFor(index: number): ParentOperations {
    return {
      register: (description, signal) => this.server.register(description, signal),
      heartbeat: ({ beat, replySeconds }, signal) => this.server.heartbeat(index, beat, replySeconds, signal),
      lease: (request, signal) => this.server.lease(index, request, signal),
      takenOver: async (error) => this.resolveFailed(floeErrors.decode(error)),
    };
  }

  /** Restarts a process whenever it ends, until the node closes or the process has ended too often. */
  private async supervise(worker: Worker): Promise<void> {
    const { clock, log, metrics } = this.deps;
    const { index } = worker.setup;
    const { signal } = this.closing;
    for (let earlyEnds = 0; ; ) {
      const startedMs = clock.monotonicMs();
      const how = await worker.process?.ended;
      if (signal.aborted) return;
      worker.ends++;
      worker.state = 'starting';
      metrics.processEnds.inc();
      log.error({ process: index, how }, 'a process of the node has ended; its sessions return to the queue');
      this.server.lose(index);
      earlyEnds = clock.monotonicMs() - startedMs < EARLY_MS ? earlyEnds + 1 : 1;
      if (earlyEnds < MAX_EARLY_ENDS) await sleep(clock, backoffMs(RESTART, earlyEnds), signal).catch(() => undefined);
      if (signal.aborted) return;
      if (earlyEnds >= MAX_EARLY_ENDS || this.draining) return this.abandon(worker);
      // A process that cannot be started ends, which counts as another end.
      await this.launch(worker).catch((error: unknown) => {
        log.error(
          { process: index, error: asFloeError(error).message },
          'a process of the node could not be restarted',
        );
      });
    }
  }

  private abandon(worker: Worker): void {
    worker.state = 'stopped';
    this.deps.log.error({ process: worker.setup.index }, 'the process of the node is not restarted');
    if (this.draining || this.workers.some(({ state }) => state !== 'stopped')) return;
    this.resolveFailed(new FloeError('node_died', 'all processes of the node have ended and are not restarted'));
  }
}
