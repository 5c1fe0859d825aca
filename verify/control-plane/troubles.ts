import type { Host } from './network.ts';
import type { Trouble } from './plan.ts';
import { SimGateway } from './sim-gateway.ts';
import type { SimServer } from './sim-server.ts';
import type { World } from './world.ts';

export type Parts = {
  readonly servers: readonly SimServer[];
  readonly gateways: SimGateway[];
};

/** How long a process stays away or stands still, ms: at times longer than any lease. */
const AWAY_MS = { from: 20, to: 3_000 };
const STILL_MS = { from: 50, to: 8_000 };
const HOUR_MS = 3_600_000;

/** Makes things go wrong for a while, then sets everything right and leaves it alone. */
export class Troublemaker {
  private readonly world: World;
  private readonly parts: Parts;
  private over = false;

  constructor(world: World, parts: Parts) {
    this.world = world;
    this.parts = parts;
  }

  start(): void {
    const { world } = this;
    const { plan, timeline } = world;
    world.network.faults = plan.network;
    world.database.disk.faults = plan.disk;
    world.shelf.failPut = plan.failPut;
    world.loseAnnouncement = plan.loseAnnouncement;
    timeline.after(plan.troubleMs, () => this.end());
    if (plan.troubles.length > 0) this.next();
  }

  private next(): void {
    const { dice, plan, timeline } = this.world;
    timeline.after(dice.between(0, 2 * plan.betweenMs), () => {
      if (this.over) return;
      this.make(dice.pick(plan.troubles));
      this.next();
    });
  }

  private make(trouble: Trouble): void {
    const { dice, timeline } = this.world;
    const server = dice.pick(this.parts.servers);
    const gateway = dice.pick(this.parts.gateways);
    const { host } = dice.pick([server, gateway]);
    const makers: Readonly<Record<Trouble, () => void>> = {
      kill_server: () => this.killServer(server),
      restart_server: () => server.restart(),
      kill_node: () => {
        gateway.kill();
        this.later(AWAY_MS, () => gateway.start());
      },
      close_node: () =>
        void gateway.close().then(() => {
          if (this.over) gateway.start();
          else this.later(AWAY_MS, () => gateway.start());
        }),
      pause_server: () => this.pause(server.host),
      pause_node: () => this.pause(gateway.host),
      partition: () => this.partition(),
      database_away: () => this.databaseAway(false),
      power_failure: () => this.databaseAway(true),
      engine: () => this.engineTrouble(),
      wall_clock: () => {
        this.world.wallOffsetMs.set(host.name, dice.between(-48 * HOUR_MS, 48 * HOUR_MS));
        timeline.note(host.name, 'has its wall clock set');
      },
      drain: () => this.drain(server, gateway),
      twin: () => this.twin(gateway),
    };
    makers[trouble]();
  }

  private killServer(server: SimServer): void {
    // With one server, the store is its own: what it had not synced is gone with it.
    if (this.parts.servers.length === 1 && this.world.dice.chance(0.5)) this.world.database.rows.losePower();
    server.kill();
    this.later(AWAY_MS, () => server.start());
  }

  private pause({ process, name }: Host): void {
    if (process === null || process.paused) return;
    this.world.timeline.note(name, 'stands still');
    process.pause();
    this.later(STILL_MS, () => this.resume(name, process));
  }

  private resume(name: string, process: { readonly paused: boolean; resume(): void }): void {
    if (!process.paused) return;
    this.world.timeline.note(name, 'goes on');
    process.resume();
  }

  private partition(): void {
    const { dice, network, timeline } = this.world;
    const hosts = [...this.parts.servers, ...this.parts.gateways].map(({ host }) => host.name);
    hosts.push(...this.world.plan.trainers.map(({ name }) => name));
    const [a, b] = [dice.pick(this.parts.servers).host.name, dice.pick(hosts)];
    const oneWay = dice.chance(0.5);
    network.partition(a, b, oneWay);
    timeline.note('network', `${a} ${oneWay ? 'does not reach' : 'is cut off from'} ${b}`);
    this.later(STILL_MS, () => {
      network.heal();
      timeline.note('network', 'is whole again');
    });
  }

  private databaseAway(powerFails: boolean): void {
    const { database, timeline } = this.world;
    if (powerFails) database.rows.losePower();
    database.up = false;
    timeline.note('database', powerFails ? 'loses its power' : 'goes away');
    this.later(AWAY_MS, () => {
      database.up = true;
      timeline.note('database', 'is back');
    });
  }

  private engineTrouble(): void {
    const { dice, timeline } = this.world;
    this.world.engine = dice.pick(['failing', 'hanging']);
    timeline.note('engine', `is ${this.world.engine}`);
    this.later(AWAY_MS, () => {
      this.world.engine = 'well';
      timeline.note('engine', 'is well');
    });
  }

  private drain(server: SimServer, gateway: SimGateway): void {
    const { timeline } = this.world;
    timeline.note('operator', `drains ${gateway.plan.nodeId}`);
    const asked = { id: gateway.plan.nodeId, query: undefined, body: undefined };
    server.host.process?.enter(() => {
      // Refused when the server is away, or does not know the node; then nothing is drained.
      server.ask('drainNode', asked, new AbortController().signal).catch(() => undefined);
    });
    this.later(STILL_MS, () => this.replace(gateway));
  }

  /** A drained node takes work again once its process was started anew. */
  private replace(gateway: SimGateway): void {
    gateway.kill();
    gateway.start();
  }

  /** Another process under the id of a node, on another machine. */
  private twin(gateway: SimGateway): void {
    const { timeline } = this.world;
    const hostName = `${gateway.plan.hostName}b`;
    if (this.parts.gateways.some(({ host }) => host.name === hostName)) return;
    const twin = new SimGateway({ ...gateway.plan, hostName }, this.world, this.parts.servers);
    timeline.note('operator', `starts a second ${gateway.plan.nodeId}`);
    this.parts.gateways.push(twin);
    twin.start();
  }

  private later(range: { from: number; to: number }, action: () => void): void {
    const { timeline, dice } = this.world;
    timeline.after(dice.between(range.from, range.to), () => {
      if (!this.over) action();
    });
  }

  /** Nothing goes wrong from here on, so everything must come to its end. */
  private end(): void {
    const { world, parts } = this;
    this.over = true;
    world.settle();
    for (const server of parts.servers) {
      if (server.host.process?.paused === true) server.host.process.resume();
      server.start();
    }
    for (const gateway of parts.gateways) {
      if (gateway.host.process?.paused === true) gateway.host.process.resume();
      // Twins go; whoever was drained or refused is started anew by its supervisor.
      if (gateway.host.name !== gateway.plan.nodeId) gateway.kill();
      else if (world.plan.troubles.some((trouble) => trouble === 'drain' || trouble === 'twin')) this.replace(gateway);
      else gateway.start();
    }
  }
}
