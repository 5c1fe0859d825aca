import type { AddressInfo, Server, Socket } from 'node:net';
import type { Server as TlsServer } from 'node:tls';
import type { FastifyInstance } from 'fastify';
import { asFloeError, FloeError } from '../../core/errors.ts';
import { readTls, type TlsFiles, type TlsMaterial, watchTls } from '../../core/tls-files.ts';
import type { RolloutConfig } from '../config.ts';
import type { RolloutContext } from '../context.ts';
import type { Face, RouteName } from './api.ts';
import { buildApp } from './app.ts';
import type { Handlers } from './handler.ts';

/** Where the control API is; null: part of `url`. */
export type ListenerUrls = { readonly url: string; readonly nodeUrl: string | null; readonly adminUrl: string | null };

type Listener = { readonly app: FastifyInstance; readonly host: string; readonly port: number };

/** The listeners of a server: the main one, and those for nodes and for metrics where they have places of their own. */
export class Listeners {
  readonly main: Listener;
  private readonly node: Listener | null;
  private readonly admin: Listener | null;
  private readonly context: RolloutContext;
  private endFollowing = (): void => {};

  /** Throws `setup_failed` for certificate files that cannot be used. */
  constructor(context: RolloutContext, handlers: Handlers<RouteName>) {
    const { config } = context;
    const files = tlsFiles(config);
    const tls = files === null ? null : readTls(files);
    const faces: Face[] = ['main'];
    const open = (place: { host: string; port: number } | null, face: Face): Listener | null => {
      if (place !== null) return { ...place, app: buildApp(context, { handlers, faces: new Set([face]), tls }) };
      faces.push(face);
      return null;
    };
    this.context = context;
    this.node = open(config.node_listener, 'node');
    this.admin = open(config.admin_listener, 'admin');
    const app = buildApp(context, { handlers, faces: new Set(faces), tls });
    this.main = { app, host: config.host, port: config.port };
    for (const listener of this.all()) this.limitConnections(listener.app.server);
    if (files !== null) this.follow(files);
  }

  /** Throws `setup_failed` when an address cannot be had; then none is listened on. */
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

  /** Waits for requests in progress. */
  async close(): Promise<void> {
    this.endFollowing();
    await Promise.all(this.all().map(({ app }) => app.close()));
  }

  /** Ends requests in progress. */
  abandon(): void {
    for (const { app } of this.all()) app.server.closeAllConnections();
  }

  private all(): Listener[] {
    return [this.main, this.node, this.admin].filter((listener) => listener !== null);
  }

  private async open({ app, host, port }: Listener): Promise<string> {
    try {
      await app.listen({ host, port });
    } catch (cause) {
      const { message } = asFloeError(cause);
      throw new FloeError('setup_failed', `cannot listen on ${host}:${port}: ${message}`, { host, port }, cause);
    }
    const address = app.server.address() as AddressInfo;
    const shown = address.family === 'IPv6' ? `[${address.address}]` : address.address;
    return `${this.context.config.tls === null ? 'http' : 'https'}://${shown}:${address.port}`;
  }

  private follow(files: TlsFiles): void {
    const { clock, log } = this.context;
    const apply = (material: TlsMaterial): void => {
      for (const { app } of this.all()) (app.server as unknown as TlsServer).setSecureContext(material);
      log.info({ ...files }, 'the certificate was read again; new connections have it');
    };
    this.endFollowing = watchTls(files, clock, apply, (error) =>
      log.error({ error: error.message }, 'the changed certificate cannot be used; the one before it stays'),
    );
  }

  /** One client that opens connections without end must not lock the others out. */
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
