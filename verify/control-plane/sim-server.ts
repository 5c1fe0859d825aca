import { asFloeError, FloeError } from '@floe-rl/core';
import type { CallbackTransport } from '#server/rollout/callbacks/transport';
import { type RolloutConfig, rolloutConfigSchema } from '#server/rollout/config';
import { type ControlPlane, createControlPlane } from '#server/rollout/control-plane';
import type { Api, RouteName, RouteSpec } from '#server/rollout/http/api';
import type { Call, Handler } from '#server/rollout/http/handler';
import type { SimCluster } from './cluster.ts';
import type { Host } from './network.ts';
import { SimProcess } from './sim-process.ts';
import { SimBlobs, SimStore } from './sim-store.ts';

/** Time in ms before a server that failed to start is started once more, as a supervisor would do. */
const RESTART_DELAY_MS = 300;
const REPLY = { header: () => REPLY, type: () => REPLY };
const REQUEST = { headers: {} };

/** The fields of an API call that a simulated client sets. The simulated server fills in the other fields of the `Call`. */
export type ApiCall<Name extends RouteName> = Pick<Call<Api[Name]>, 'id' | 'query' | 'body'>;

/** A simulated trainer's endpoint that receives callbacks. */
export type CallbackReceiver = {
  readonly host: Host;
  /** Handles a callback and resolves to the HTTP status of the reply. `disconnected` aborts when the sending server disconnects. */
  receiveCallback(headers: Readonly<Record<string, string>>, body: string, disconnected: AbortSignal): Promise<number>;
};

/** A simulated rollout server, which runs floe's own control plane. After a restart it uses the same database as before. */
export class SimServer {
  readonly host: Host;
  private readonly cluster: SimCluster;
  private readonly config: RolloutConfig;
  private readonly receivers: ReadonlyMap<string, CallbackReceiver>;
  /** The control plane of the running server process; `null` while no process accepts calls. */
  private plane: ControlPlane | null = null;
  /** The server process that is starting and does not accept calls yet; `null` when no process is starting. */
  private starting: SimProcess | null = null;
  /** Whether the running server process is shutting down gracefully. */
  private isClosing = false;

  /** `receivers` maps the name of each trainer to its callback receiver. Entries may be added to the map after construction. */
  constructor(name: string, cluster: SimCluster, receivers: ReadonlyMap<string, CallbackReceiver>) {
    this.host = cluster.host(name);
    this.cluster = cluster;
    this.config = rolloutConfigSchema.parse(cluster.plan.server);
    this.receivers = receivers;
  }

  start(): void {
    const { cluster, host } = this;
    const { timeline } = cluster;
    if (host.process?.alive === true || this.starting?.alive === true) return;
    const process = new SimProcess(host.name, timeline, cluster.plan.clockRate(host.name), () => this.wallOffsetMs());
    host.process = null;
    this.starting = process;
    this.isClosing = false;
    timeline.record(host.name, 'starts');
    const starting = createControlPlane(this.config, {
      store: new SimStore(process, {
        database: cluster.database,
        timeline,
        random: cluster.random.fork(),
        announcementLossRate: () => cluster.announcementLossRate,
      }),
      blobs: new SimBlobs(process, { files: cluster.blobFiles, timeline, random: cluster.random.fork() }),
      clock: process.clock,
      random: () => cluster.random.next(),
      newId: (prefix) => cluster.newId(prefix),
      validateTask: () => {},
      callbackTransport: this.callbackTransport(process),
    });
    starting.then(
      (plane) => this.open(process, plane),
      (thrown: unknown) => {
        timeline.record(host.name, `cannot start: ${asFloeError(thrown).message}`);
        process.kill();
        timeline.after(RESTART_DELAY_MS, () => this.start());
      },
    );
  }

  kill(): void {
    this.host.process?.kill();
    this.starting?.kill();
    this.host.process = null;
    this.plane = null;
    this.cluster.timeline.record(this.host.name, 'is killed');
  }

  /** Shuts the server process down gracefully, as an operator does for an update, and then starts another process. */
  restart(): void {
    const { plane, host, cluster } = this;
    const { process } = host;
    if (plane === null || process === null || this.isClosing) return;
    this.isClosing = true;
    cluster.timeline.record(host.name, 'closes');
    process.execute(() => {
      plane.close();
      cluster.timeline.after(this.config.shutdown_grace_seconds * 1000, () => {
        if (!process.alive) return;
        process.kill();
        if (host.process === process) host.process = null;
        this.start();
      });
    });
  }

  /** Handles an API call in the running server process. Resolves to the parsed reply. Rejects with the error that the server returns. */
  async call<Name extends RouteName>(name: Name, apiCall: ApiCall<Name>, disconnected: AbortSignal): Promise<unknown> {
    const { plane, cluster } = this;
    if (plane === null || plane.context.closing.aborted) throw new FloeError('not_ready', 'the server is closing');
    try {
      const call = { ...apiCall, disconnected, request: REQUEST, reply: REPLY };
      return await parseReply(await (plane.handlers[name] as Handler<RouteSpec>)(call as unknown as Call<RouteSpec>));
    } catch (thrown) {
      if (FloeError.is(thrown) && thrown.code !== 'internal') throw thrown;
      const { message, stack } = thrown instanceof Error ? thrown : new Error(String(thrown));
      const text = `${name} failed by a defect: ${message} ${stack?.split('\n')[1] ?? ''}`;
      cluster.timeline.reportViolation('no defects', text);
      throw asFloeError(thrown);
    }
  }

  private open(process: SimProcess, plane: ControlPlane): void {
    const { cluster, host } = this;
    host.process = process;
    this.starting = null;
    this.plane = plane;
    cluster.timeline.record(host.name, 'listens');
    plane.run().catch((thrown: unknown) => {
      if (plane.context.closing.aborted) return;
      const message = thrown instanceof Error ? (thrown.stack ?? thrown.message) : String(thrown);
      cluster.timeline.reportViolation('no defects', `the background work of ${host.name} ended: ${message}`);
    });
  }

  /**
   * Returns a transport that delivers callbacks over the simulated network. The callback URL of a trainer is `http://127.0.0.1/<trainer>`.
   */
  private callbackTransport(process: SimProcess): CallbackTransport {
    return {
      post: async ({ url, headers, body, signal }) => {
        const chunks: Buffer[] = [];
        for await (const chunk of body) chunks.push(chunk);
        const text = Buffer.concat(chunks).toString();
        const receiver = this.receivers.get(new URL(url).pathname.slice(1));
        if (receiver === undefined) throw new FloeError('peer_unreachable', `no process listens at ${url}`);
        return this.cluster.network.call(process, {
          to: receiver.host,
          name: 'callback',
          signal,
          handle: (disconnected) => receiver.receiveCallback(headers, text, disconnected),
        });
      },
      close: async () => {},
    };
  }

  private wallOffsetMs(): number {
    return this.cluster.wallOffsetMs.get(this.host.name) ?? 0;
  }
}

async function parseReply(value: unknown): Promise<unknown> {
  if (typeof value === 'string') return JSON.parse(value);
  if (Buffer.isBuffer(value) || typeof value !== 'object' || value === null || !('pipe' in value)) return value;
  const chunks: Buffer[] = [];
  for await (const chunk of value as unknown as AsyncIterable<Buffer>) chunks.push(chunk);
  return JSON.parse(Buffer.concat(chunks).toString());
}
