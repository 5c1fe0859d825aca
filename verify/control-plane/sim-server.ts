import { asFloeError, FloeError } from '../../src/core/errors.ts';
import { type RolloutConfig, rolloutConfigSchema } from '../../src/rollout/config.ts';
import { type ControlPlane, createControlPlane } from '../../src/rollout/control-plane.ts';
import type { Api, RouteName, RouteSpec } from '../../src/rollout/http/api.ts';
import type { Call, Handler } from '../../src/rollout/http/handler.ts';
import { callbackTransport } from './callback-network.ts';
import type { Host } from './network.ts';
import { SimBlobs } from './sim-blobs.ts';
import { SimProcess } from './sim-process.ts';
import { SimStore } from './sim-store.ts';
import type { Trainer } from './trainer.ts';
import type { World } from './world.ts';

/** A supervisor starts a server that could not start again after this, ms. */
const RESTART_MS = 300;
const REPLY = { header: () => REPLY, type: () => REPLY };
const REQUEST = { headers: {} };

/** What a caller says; the rest of a `Call` is made up. */
export type Asked<Name extends RouteName> = Pick<Call<Api[Name]>, 'id' | 'query' | 'body'>;

/** A rollout server: the real control plane, started again and again on the same store. */
export class SimServer {
  readonly host: Host;
  private readonly world: World;
  private readonly config: RolloutConfig;
  private readonly trainers: ReadonlyMap<string, Trainer>;
  private plane: ControlPlane | null = null;
  /** A process that does not listen yet. */
  private starting: SimProcess | null = null;
  /** Ends the life of the process in order. */
  private closing = false;

  constructor(name: string, world: World, trainers: ReadonlyMap<string, Trainer>) {
    this.host = world.host(name);
    this.world = world;
    this.config = rolloutConfigSchema.parse(world.plan.server);
    this.trainers = trainers;
  }

  start(): void {
    const { world, host } = this;
    const { timeline } = world;
    if (host.process?.alive === true || this.starting?.alive === true) return;
    const life = new SimProcess(host.name, timeline, world.plan.clockRate(host.name), () => this.wallOffsetMs());
    host.process = null;
    this.starting = life;
    this.closing = false;
    timeline.note(host.name, 'starts');
    const starting = createControlPlane(this.config, {
      store: new SimStore(life, {
        database: world.database,
        timeline,
        dice: world.dice.fork(),
        loseAnnouncement: () => world.loseAnnouncement,
      }),
      blobs: new SimBlobs(life, { shelf: world.shelf, timeline, dice: world.dice.fork() }),
      clock: life.clock,
      random: () => world.dice.next(),
      newId: (prefix) => world.newId(prefix),
      validateTask: () => {},
      callbackTransport: callbackTransport(world, life, this.trainers),
    });
    starting.then(
      (plane) => this.open(life, plane),
      (thrown: unknown) => {
        timeline.note(host.name, `could not start: ${asFloeError(thrown).message}`);
        life.kill();
        timeline.after(RESTART_MS, () => this.start());
      },
    );
  }

  kill(): void {
    this.host.process?.kill();
    this.starting?.kill();
    this.host.process = null;
    this.plane = null;
    this.world.timeline.note(this.host.name, 'is killed');
  }

  /** Ends in order, as for an update, and starts again. */
  restart(): void {
    const { plane, host, world } = this;
    const life = host.process;
    if (plane === null || life === null || this.closing) return;
    this.closing = true;
    world.timeline.note(host.name, 'closes');
    life.enter(() => {
      plane.close();
      world.timeline.after(this.config.shutdown_grace_seconds * 1000, () => {
        if (!life.alive) return;
        life.kill();
        if (host.process === life) host.process = null;
        this.start();
      });
    });
  }

  /** Runs a call in the process that listens now. Rejects with what the server answers. */
  async ask<Name extends RouteName>(name: Name, asked: Asked<Name>, gone: AbortSignal): Promise<unknown> {
    const { plane, world } = this;
    if (plane === null || plane.context.closing.aborted) throw new FloeError('not_ready', 'the server is closing');
    try {
      const call = { ...asked, disconnected: gone, request: REQUEST, reply: REPLY };
      return await readAnswer(await (plane.handlers[name] as Handler<RouteSpec>)(call as unknown as Call<RouteSpec>));
    } catch (thrown) {
      if (FloeError.is(thrown) && thrown.code !== 'internal') throw thrown;
      const { message, stack } = thrown instanceof Error ? thrown : new Error(String(thrown));
      world.timeline.violate('no defects', `${name} failed by a defect: ${message} ${stack?.split('\n')[1] ?? ''}`);
      throw asFloeError(thrown);
    }
  }

  private open(life: SimProcess, plane: ControlPlane): void {
    const { world, host } = this;
    host.process = life;
    this.starting = null;
    this.plane = plane;
    world.timeline.note(host.name, 'listens');
    plane.run().catch((thrown: unknown) => {
      if (plane.context.closing.aborted) return;
      const message = thrown instanceof Error ? (thrown.stack ?? thrown.message) : String(thrown);
      world.timeline.violate('no defects', `the background work of ${host.name} ended: ${message}`);
    });
  }

  private wallOffsetMs(): number {
    return this.world.wallOffsetMs.get(this.host.name) ?? 0;
  }
}

async function readAnswer(value: unknown): Promise<unknown> {
  if (typeof value === 'string') return JSON.parse(value);
  if (Buffer.isBuffer(value) || typeof value !== 'object' || value === null || !('pipe' in value)) return value;
  const chunks: Buffer[] = [];
  for await (const chunk of value as unknown as AsyncIterable<Buffer>) chunks.push(chunk);
  return JSON.parse(Buffer.concat(chunks).toString());
}
