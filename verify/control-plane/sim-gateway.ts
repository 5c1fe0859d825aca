import type { DeliveredResult } from '../../src/client/node-api.ts';
import { encodeEnvelope } from '../../src/core/envelope.ts';
import { asFloeError, FloeError } from '../../src/core/errors.ts';
import { NodeAgent, type NodeCalls } from '../../src/gateway/node/node-agent.ts';
import { StagePools } from '../../src/gateway/node/stage-pools.ts';
import { createGatewayMetrics } from '../../src/observe/gateway-metrics.ts';
import { type Logger, silentLogger } from '../../src/observe/log.ts';
import type { RouteName } from '../../src/rollout/http/api.ts';
import type {
  DeliveryReply,
  EngineDirectory,
  HeartbeatReply,
  LeaseReply,
  NodeInfo,
  PartialReply,
} from '../../src/schema/index.ts';
import { AgentRun } from './agent-run.ts';
import type { Host } from './network.ts';
import type { NodePlan } from './plan.ts';
import { SimProcess } from './sim-process.ts';
import type { Asked, SimServer } from './sim-server.ts';
import type { World } from './world.ts';

/** Nobody reads them, so all simulations may count into the same. */
const METRICS = createGatewayMetrics();
/** The helper process of a killed node ends its sandboxes within this time, ms. */
const REAP_MS = { from: 1, to: 400 };
/** A supervisor starts a node that could not start again after this, ms. */
const RESTART_MS = 500;

/** A gateway node: the real agent over a simulated network, with sessions that follow a plan. */
export class SimGateway {
  readonly host: Host;
  readonly plan: NodePlan;
  private readonly world: World;
  private readonly servers: readonly SimServer[];
  private lives = 0;
  /** Index of the server that answered last. */
  private server = 0;
  private agent: NodeAgent | null = null;
  /** Where the engines stand that this process knows of. */
  private revision = 0;

  constructor(plan: NodePlan, world: World, servers: readonly SimServer[]) {
    this.plan = plan;
    this.host = world.host(plan.hostName);
    this.world = world;
    this.servers = servers;
  }

  /** Of the engine directory that the running process has heard of. */
  get heard(): number {
    return this.revision;
  }

  get liveSessions(): number {
    return this.host.process === null ? 0 : (this.agent?.live().length ?? 0);
  }

  start(): void {
    const { world, host, plan } = this;
    if (host.process?.alive === true) return;
    const rate = world.plan.clockRate(host.name);
    const life = new SimProcess(host.name, world.timeline, rate, () => world.wallOffsetMs.get(host.name) ?? 0);
    this.lives++;
    this.revision = 0;
    const instance = `${host.name}-${this.lives}`;
    host.process = life;
    life.onKill(() => this.reap(life));
    world.timeline.note(host.name, `starts as ${plan.nodeId}, process ${instance}`);
    const pools = new StagePools(plan.pools, plan.policy);
    const agent = new NodeAgent({
      api: this.calls(life, instance),
      registration: {
        host: null,
        dispatch_policy: plan.policy,
        gateway_url: null,
        max_init_workers: plan.pools.init,
        ready_size: plan.pools.ready,
        max_run_workers: plan.pools.run,
        max_postrun_workers: plan.pools.postrun,
      },
      clock: life.clock,
      log: this.log(),
      metrics: METRICS,
      // A node that lies about its capacity asks for more than it can take.
      pools: plan.lie === 0 ? pools : lying(pools, plan.lie),
      engines: this.engines(),
      leaseWaitSeconds: 5,
      heartbeatSeconds: world.plan.heartbeatSeconds,
      runSession: (attempt) => new AgentRun(world, life, { nodeId: plan.nodeId, instance, pools }, attempt).run(),
      onDelivered: () => {},
    });
    this.agent = agent;
    void agent.takenOver.then(() => this.giveWay(life));
    agent.start().catch((thrown: unknown) => {
      world.timeline.note(host.name, `could not start: ${asFloeError(thrown).message}`);
      life.kill();
      world.timeline.after(RESTART_MS, () => this.start());
    });
  }

  kill(): void {
    this.world.timeline.note(this.host.name, 'is killed');
    this.host.process?.kill();
    this.host.process = null;
  }

  /** Ends in order: sessions go back to the queue. */
  async close(): Promise<void> {
    const { agent, host, world } = this;
    const life = host.process;
    if (agent === null || life === null) return;
    world.timeline.note(host.name, 'closes');
    await agent.close();
    world.timeline.note(host.name, 'is closed');
    life.kill();
    if (host.process === life) host.process = null;
  }

  /** A newer process has the id: this one ends, and whoever watches over it does not start it again. */
  private async giveWay(life: SimProcess): Promise<void> {
    this.world.timeline.note(this.host.name, 'gives way to a newer process');
    await this.agent?.close();
    life.kill();
    if (this.host.process === life) this.host.process = null;
  }

  private reap(life: SimProcess): void {
    const { world } = this;
    world.timeline.after(world.dice.between(REAP_MS.from, REAP_MS.to), () => world.history.sandboxes.endAllOf(life));
  }

  private calls(life: SimProcess, instance: string): NodeCalls {
    const { nodeId } = this.plan;
    const ask = <Reply>(name: RouteName, body: unknown, signal?: AbortSignal): Promise<Reply> =>
      this.ask(life, name, { id: nodeId, query: undefined, body }, signal) as Promise<Reply>;
    return {
      nodeId,
      register: (registration, signal) =>
        ask<NodeInfo>('registerNode', { ...registration, node_id: nodeId, instance }, signal),
      heartbeat: (beat, signal) => ask<HeartbeatReply>('heartbeat', { ...beat, instance }, signal),
      lease: async (asked, signal) => {
        const { leases } = await ask<LeaseReply>('lease', { ...asked, instance }, signal);
        const { history, rules } = this.world;
        for (const lease of leases) {
          history.leased(instance, rules.claims.ownerOf(lease.session_id, lease.epoch), lease);
        }
        return leases;
      },
      deliverResult: (result, signal) => ask<DeliveryReply>('deliverResult', envelopeOf(result), signal),
      deliverPartial: async (remains, signal) => {
        const reply = await ask<PartialReply>('deliverPartial', envelopeOf(remains), signal);
        const { session_id: id, epoch } = remains.summary;
        this.world.history.keptPartials.add(`${id}/${epoch}`);
        return reply;
      },
    };
  }

  private async ask(life: SimProcess, name: RouteName, asked: unknown, signal?: AbortSignal): Promise<unknown> {
    const server = this.servers[this.server % this.servers.length] as SimServer;
    try {
      return await this.world.network.call(life, {
        to: server.host,
        what: name,
        signal,
        handle: (gone) => server.ask(name, asked as Asked<RouteName>, gone),
      });
    } catch (thrown) {
      if (FloeError.is(thrown) && thrown.code === 'peer_unreachable') this.server++;
      throw thrown;
    }
  }

  private engines() {
    return {
      report: () => ({ revision: this.revision, heard: this.revision, info: [], problems: [] }),
      apply: (directory: EngineDirectory) => {
        this.revision = Math.max(this.revision, directory.revision);
      },
      retry: () => {},
    };
  }

  private log(): Logger {
    const { timeline } = this.world;
    const say = (fields: { session?: string }, message: string): void =>
      timeline.note(this.host.name, `${fields.session ?? ''} ${message}`.trim());
    return { ...silentLogger, info: say, warn: () => {}, error: say } as unknown as Logger;
  }
}

function envelopeOf({ summary, trajectory, completions, artifacts }: DeliveredResult): Buffer {
  const parts = new Map<string, Buffer>();
  for (const [name, bytes] of Object.entries({ trajectory, completions, artifacts })) {
    if (bytes !== null) parts.set(name, bytes);
  }
  return encodeEnvelope({ header: summary, parts });
}

function lying(pools: StagePools, more: number): StagePools {
  const honest = pools.admissible.bind(pools);
  return Object.assign(pools, { admissible: () => honest() + more });
}
