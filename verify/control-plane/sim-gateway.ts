import type { DeliveredResult } from '@floe-rl/client';
import { asFloeError, FloeError } from '@floe-rl/core';
import { encodeEnvelope } from '@floe-rl/core/protocol';
import type {
  DeliveryReply,
  EngineDirectory,
  HeartbeatReply,
  LeaseReply,
  NodeInfo,
  PartialReply,
} from '@floe-rl/core/schema';
import { createGatewayMetrics, type Logger, silentLogger } from '@floe-rl/observe';
import { NodeAgent, type NodeCalls } from '#node/gateway/node/node-agent';
import { StagePools } from '#node/gateway/node/stage-pools';
import type { RouteName } from '#server/rollout/http/api';
import type { SimCluster } from './cluster.ts';
import type { Host } from './network.ts';
import type { NodePlan } from './plan.ts';
import { SimProcess } from './sim-process.ts';
import type { ApiCall, SimServer } from './sim-server.ts';
import { SimSessionRun } from './sim-session-run.ts';

/** All simulations of this thread share one metrics object, because no check reads the metrics. */
const METRICS = createGatewayMetrics();
/** The sandboxes of a killed node are ended by its spawn helper after a random time in this range, in ms. */
const REAP_DELAY_MS = { from: 1, to: 400 };
/** Time in ms before a node that failed to start is started once more, as a supervisor would do. */
const RESTART_DELAY_MS = 500;

/** A simulated gateway node. It runs floe's own `NodeAgent` over the simulated network; its sessions follow a script. */
export class SimGateway {
  readonly host: Host;
  readonly plan: NodePlan;
  private readonly cluster: SimCluster;
  private readonly servers: readonly SimServer[];
  /** Number of processes that this node has started so far. */
  private processCount = 0;
  /** Number of times that the node has switched to another server. Its calls go to `servers[serverIndex % servers.length]`. */
  private serverIndex: number;
  /** Virtual time of the last reply of a server to the node, ms. */
  lastReplyMs = 0;
  private agent: NodeAgent | null = null;
  /** Revision of the newest list of engines that the running process has received from a server. */
  private engineRevision = 0;

  constructor(plan: NodePlan, cluster: SimCluster, servers: readonly SimServer[]) {
    this.plan = plan;
    this.host = cluster.host(plan.hostName);
    this.cluster = cluster;
    this.servers = servers;
    this.serverIndex = plan.firstServer;
  }

  /** The server that the node calls at present. */
  get server(): SimServer {
    return this.servers[this.serverIndex % this.servers.length] as SimServer;
  }

  /** Number of sessions that the running node process holds; 0 when no process is running. */
  get liveSessions(): number {
    return this.host.process === null ? 0 : (this.agent?.live().length ?? 0);
  }

  start(): void {
    const { cluster, host, plan } = this;
    if (host.process?.alive === true) return;
    const rate = cluster.plan.clockRate(host.name);
    const process = new SimProcess(host.name, cluster.timeline, rate, () => cluster.wallOffsetMs.get(host.name) ?? 0);
    this.processCount++;
    this.engineRevision = 0;
    const instance = `${host.name}-${this.processCount}`;
    host.process = process;
    process.onKill(() => this.endSandboxes(process));
    cluster.timeline.record(host.name, `starts as ${plan.nodeId} with process ${instance}`);
    const pools = new StagePools(plan.pools, plan.policy);
    const chooser = cluster.engines?.chooserOf(process) ?? null;
    const agent = new NodeAgent({
      api: this.calls(process, instance),
      registration: {
        host: null,
        dispatch_policy: plan.policy,
        gateway_url: null,
        max_init_workers: plan.pools.init,
        ready_size: plan.pools.ready,
        max_run_workers: plan.pools.run,
        max_postrun_workers: plan.pools.postrun,
        memory_mb: null,
      },
      clock: process.clock,
      log: this.log(),
      metrics: METRICS,
      pools: plan.excessSessions === 0 ? pools : withExcessDemand(pools, plan.excessSessions),
      engines: this.engines(),
      leaseWaitSeconds: 5,
      heartbeatSeconds: cluster.plan.heartbeatSeconds,
      runSession: (attempt) =>
        new SimSessionRun(cluster, process, { nodeId: plan.nodeId, instance, pools, chooser }, attempt).run(),
      onDelivered: () => {},
    });
    this.agent = agent;
    void agent.takenOver.then(() => this.endDisplaced(process));
    agent.start().catch((thrown: unknown) => {
      cluster.timeline.record(host.name, `cannot start: ${asFloeError(thrown).message}`);
      process.kill();
      cluster.timeline.after(RESTART_DELAY_MS, () => this.start());
    });
  }

  kill(): void {
    this.cluster.timeline.record(this.host.name, 'is killed');
    this.host.process?.kill();
    this.host.process = null;
  }

  /** Shuts the node process down gracefully, so that its unfinished sessions return to the server's queue. */
  async close(): Promise<void> {
    const { agent, host, cluster } = this;
    const process = host.process;
    if (agent === null || process === null) return;
    cluster.timeline.record(host.name, 'closes');
    await agent.close();
    cluster.timeline.record(host.name, 'is closed');
    process.kill();
    if (host.process === process) host.process = null;
  }

  /** Ends an older process of the node after a newer process has registered with the same node id. The older process is not restarted. */
  private async endDisplaced(process: SimProcess): Promise<void> {
    this.cluster.timeline.record(this.host.name, 'ends because a newer process has its node id');
    await this.agent?.close();
    process.kill();
    if (this.host.process === process) this.host.process = null;
  }

  private endSandboxes(process: SimProcess): void {
    const { cluster } = this;
    const delayMs = cluster.random.between(REAP_DELAY_MS.from, REAP_DELAY_MS.to);
    cluster.timeline.after(delayMs, () => cluster.history.sandboxes.endAllOf(process));
  }

  private calls(process: SimProcess, instance: string): NodeCalls {
    const { nodeId } = this.plan;
    const call = <Reply>(name: RouteName, body: unknown, signal?: AbortSignal): Promise<Reply> =>
      this.call(process, name, { id: nodeId, query: undefined, body }, signal) as Promise<Reply>;
    return {
      nodeId,
      register: (registration, signal) =>
        call<NodeInfo>('registerNode', { ...registration, node_id: nodeId, instance }, signal),
      heartbeat: (beat, signal) => call<HeartbeatReply>('heartbeat', { ...beat, instance }, signal),
      lease: async (request, signal) => {
        const { history, rules, timeline } = this.cluster;
        const sentMs = timeline.nowMs;
        const { leases } = await call<LeaseReply>('lease', { ...request, instance }, signal);
        history.addLeaseWait(timeline.nowMs - sentMs, leases);
        for (const lease of leases) {
          history.addLease(instance, rules.claims.ownerOf(lease.session_id, lease.epoch), lease);
        }
        return leases;
      },
      deliverResult: (result, signal) => call<DeliveryReply>('deliverResult', envelopeOf(result), signal),
      deliverPartial: async (partial, signal) => {
        const reply = await call<PartialReply>('deliverPartial', envelopeOf(partial), signal);
        const { session_id: id, epoch } = partial.summary;
        this.cluster.history.acknowledgedPartials.add(`${id}/${epoch}`);
        return reply;
      },
    };
  }

  private async call(process: SimProcess, name: RouteName, apiCall: unknown, signal?: AbortSignal): Promise<unknown> {
    const { server } = this;
    try {
      const reply = await this.cluster.network.call(process, {
        to: server.host,
        name,
        signal,
        handle: (disconnected) => server.call(name, apiCall as ApiCall<RouteName>, disconnected),
      });
      this.lastReplyMs = this.cluster.timeline.nowMs;
      return reply;
    } catch (thrown) {
      if (FloeError.is(thrown) && thrown.code === 'peer_unreachable') this.serverIndex++;
      throw thrown;
    }
  }

  private engines() {
    return {
      report: () => ({
        revision: this.engineRevision,
        heard: this.engineRevision,
        info: [],
        problems: [],
        unpaused: [],
      }),
      apply: (directory: EngineDirectory) => {
        this.engineRevision = Math.max(this.engineRevision, directory.revision);
      },
      retry: () => {},
    };
  }

  private log(): Logger {
    const { timeline } = this.cluster;
    const log = (fields: { session?: string }, message: string): void =>
      timeline.record(this.host.name, `${fields.session ?? ''} ${message}`.trim());
    return { ...silentLogger, info: log, warn: () => {}, error: log } as unknown as Logger;
  }
}

function envelopeOf({ summary, trajectory, completions, artifacts }: DeliveredResult): Buffer {
  const parts = new Map<string, Buffer>();
  for (const [name, bytes] of Object.entries({ trajectory, completions, artifacts })) {
    if (bytes !== null) parts.set(name, bytes);
  }
  return encodeEnvelope({ header: summary, parts });
}

/**
 * Changes `pools` so that the node requests `excess` more sessions than it can admit. This tests how `NodeAgent` handles too many leases.
 */
function withExcessDemand(pools: StagePools, excess: number): StagePools {
  const admissible = pools.admissible.bind(pools);
  return Object.assign(pools, { admissible: () => admissible() + excess });
}
