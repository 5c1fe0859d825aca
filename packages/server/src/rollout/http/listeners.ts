import type { AddressInfo, Server, Socket } from 'node:net';
import type { Server as TlsServer } from 'node:tls';
import { type ListenOptions, listenError, readTls, type TlsFiles, type TlsMaterial, watchTls } from '@floe-rl/core';
import type { FastifyInstance } from 'fastify';
import type { RolloutConfig } from '../config.ts';
import type { RolloutContext } from '../context.ts';
import type { Face, RouteName } from './api.ts';
import { buildApp } from './app.ts';
import type { CompatibleApi } from './compatible-api.ts';
import type { Handlers } from './handler.ts';

/** The base URLs of the control API. `nodeUrl` and `adminUrl` are `null` when the main listener serves their routes. */
export type ListenerUrls = { readonly url: string; readonly nodeUrl: string | null; readonly adminUrl: string | null };

type Listener = {
  readonly app: FastifyInstance;
  readonly host: string;
  readonly port: number;
  /** The options of `floe server` that set the address. */
  readonly options: ListenOptions;
};

const MAIN_OPTIONS: ListenOptions = { host: '--host', port: '--port' };
const NODE_OPTIONS: ListenOptions = { host: '--node-listen', port: '--node-listen' };
const ADMIN_OPTIONS: ListenOptions = { host: '--admin-listen', port: '--admin-listen' };

/** The HTTP listeners of a server: the main listener, and separate listeners for nodes and for metrics when they are configured. */
export class Listeners {
  readonly main: Listener;
  private readonly node: Listener | null;
  private readonly admin: Listener | null;
  private readonly context: RolloutContext;
  private stopFollowing = (): void => {};

  /** Creates the listeners without starting them. Throws `setup_failed` when the certificate files cannot be used. */
  constructor(context: RolloutContext, handlers: Handlers<RouteName>, compatible: readonly CompatibleApi[]) {
    const { config } = context;
    const files = tlsFiles(config);
    const tls = files === null ? null : readTls(files);
    const faces: Face[] = ['main'];
    const create = (
      address: { host: string; port: number } | null,
      face: Face,
      options: ListenOptions,
    ): Listener | null => {
      if (address === null) {
        faces.push(face);
        return null;
      }
      return { ...address, options, app: buildApp(context, { handlers, compatible, faces: new Set([face]), tls }) };
    };
    this.context = context;
    this.node = create(config.node_listener, 'node', NODE_OPTIONS);
    this.admin = create(config.admin_listener, 'admin', ADMIN_OPTIONS);
    const app = buildApp(context, { handlers, compatible, faces: new Set(faces), tls });
    this.main = { app, host: config.host, port: config.port, options: MAIN_OPTIONS };
    for (const listener of this.all()) this.limitConnections(listener.app.server);
    if (files !== null) this.followCertificate(files);
  }

  /** Starts all listeners. Throws `setup_failed` when the server cannot listen on one of the addresses; all listeners are then closed. */
  async listen(): Promise<ListenerUrls> {
    try {
      return {
        url: await this.open(this.main),
        nodeUrl: this.node && (await this.open(this.node)),
        adminUrl: this.admin && (await this.open(this.admin)),
      };
    } catch (thrown) {
      await this.close();
      throw thrown;
    }
  }

  /** Refuses new connections and waits for the requests in progress. */
  async close(): Promise<void> {
    this.stopFollowing();
    await Promise.all(this.all().map(({ app }) => app.close()));
  }

  /** Closes all connections, which ends the requests in progress. */
  closeConnections(): void {
    for (const { app } of this.all()) app.server.closeAllConnections();
  }

  private all(): Listener[] {
    return [this.main, this.node, this.admin].filter((listener) => listener !== null);
  }

  private async open({ app, host, port, options }: Listener): Promise<string> {
    try {
      await app.listen({ host, port });
    } catch (cause) {
      throw listenError('the rollout server', { host, port }, options, cause);
    }
    const address = app.server.address() as AddressInfo;
    const shown = address.family === 'IPv6' ? `[${address.address}]` : address.address;
    return `${this.context.config.tls === null ? 'http' : 'https'}://${shown}:${address.port}`;
  }

  private followCertificate(files: TlsFiles): void {
    const { clock, log } = this.context;
    const apply = (material: TlsMaterial): void => {
      for (const { app } of this.all()) (app.server as unknown as TlsServer).setSecureContext(material);
      log.info({ ...files }, 'the certificate was reloaded; new connections use it');
    };
    this.stopFollowing = watchTls(files, clock, apply, (error) =>
      log.error({ error: error.message }, 'the changed certificate cannot be used; the previous one stays in use'),
    );
  }

  /** Limits the connections in total and per client address, so that one client cannot use up all of them. */
  private limitConnections(server: Server): void {
    const { config, counters } = this.context;
    const perAddress = new Map<string, number>();
    server.maxConnections = config.max_connections;
    server.on('drop', () => counters.add('connections_refused'));
    server.on('connection', (socket: Socket) => {
      const address = socket.remoteAddress ?? '';
      const count = (perAddress.get(address) ?? 0) + 1;
      perAddress.set(address, count);
      socket.once('close', () => {
        const left = (perAddress.get(address) ?? 1) - 1;
        if (left === 0) perAddress.delete(address);
        else perAddress.set(address, left);
      });
      if (count <= config.max_connections_per_address) return;
      counters.add('connections_refused');
      socket.destroy();
    });
  }
}

function tlsFiles({ tls }: RolloutConfig): TlsFiles | null {
  return tls === null ? null : { cert: tls.cert, key: tls.key, ca: tls.client_ca };
}
