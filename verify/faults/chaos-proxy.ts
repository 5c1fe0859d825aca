// A TCP proxy that delays, closes and resets connections on purpose. Unlike Linux's netem, it needs no kernel module.
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { sleep, systemClock } from '@floe-rl/core';

/**
 * How the proxy treats connections. `delayMs` is called for each chunk, `resetAfter` and `cutAfter` for each new connection, so that they
 * can return random values.
 */
export type Treatment = {
  /** Returns the delay in ms before the proxy forwards the next chunk. */
  readonly delayMs?: () => number;
  /**
   * Directions in which the proxy holds all bytes back, as when packets are lost. `up` is from client to server, `down` from server to
   * client.
   */
  readonly frozen?: 'both' | Direction;
  /** Returns the number of reply bytes after which the proxy resets a connection (TCP RST); `null` when it is not to be reset. */
  readonly resetAfter?: () => number | null;
  /** Returns the number of reply bytes after which the proxy closes a connection normally (TCP FIN); `null` when it is not to be closed. */
  readonly cutAfter?: () => number | null;
  /** Whether the proxy writes each byte in a separate call. */
  readonly trickle?: boolean;
  /** Whether the proxy closes new connections immediately. */
  readonly refuse?: boolean;
};

type Direction = 'up' | 'down';
type Limits = { readonly reset: number | null; readonly cut: number | null; passedBytes: number };
/** One direction of a proxied connection. `flush` forwards the bytes that were held back. */
type Pipe = { readonly flush: () => void };

/** Maximum number of chunks that the proxy holds back in one direction of a connection. It then stops reading from the sender. */
const MAX_HELD_CHUNKS = 64;

export class ChaosProxy {
  private readonly target: () => { readonly host: string; readonly port: number };
  private readonly server: Server;
  private readonly connections = new Set<readonly Pipe[]>();
  private treatment: Treatment = {};

  /**
   * Starts a proxy on the loopback interface. `target` is called for each new connection and returns the address to which it is forwarded.
   */
  static async start(target: () => { readonly host: string; readonly port: number }): Promise<ChaosProxy> {
    const proxy = new ChaosProxy(target);
    proxy.server.listen(0, '127.0.0.1');
    await once(proxy.server, 'listening');
    return proxy;
  }

  private constructor(target: () => { readonly host: string; readonly port: number }) {
    this.target = target;
    this.server = createServer({ allowHalfOpen: true }, (client) => this.accept(client));
  }

  get url(): string {
    const { port } = this.server.address() as AddressInfo;
    return `http://127.0.0.1:${port}`;
  }

  /**
   * Changes how new and open connections are treated. Bytes that were held back in a direction are forwarded unless the new treatment also
   * freezes this direction.
   */
  set(treatment: Treatment): void {
    this.treatment = treatment;
    for (const pipes of this.connections) for (const pipe of pipes) pipe.flush();
  }

  close(): void {
    this.server.close();
    this.set({ refuse: true });
  }

  private accept(client: Socket): void {
    if (this.treatment.refuse === true) {
      client.destroy();
      return;
    }
    const server = connect({ ...this.target(), allowHalfOpen: true });
    const reset = this.treatment.resetAfter?.() ?? null;
    const cut = this.treatment.cutAfter?.() ?? null;
    const pipes = [
      this.pipe(client, server, 'up', null),
      this.pipe(server, client, 'down', { reset, cut, passedBytes: 0 }),
    ];
    this.connections.add(pipes);
    const end = (): void => {
      this.connections.delete(pipes);
      client.destroy();
      server.destroy();
    };
    for (const socket of [client, server]) socket.on('error', end).on('close', end);
  }

  private pipe(from: Socket, to: Socket, direction: Direction, limits: Limits | null): Pipe {
    /** Chunks that have not been forwarded yet, in order of arrival; `null` marks the end of the stream. */
    const held: (Buffer | null)[] = [];
    let isPassing = false;
    const isFrozen = (): boolean => this.treatment.frozen === 'both' || this.treatment.frozen === direction;
    const pass = async (): Promise<void> => {
      if (isPassing) return;
      isPassing = true;
      while (held.length > 0 && !isFrozen()) {
        const chunk = held.shift() ?? null;
        const delayMs = this.treatment.delayMs?.() ?? 0;
        if (delayMs > 0) await sleep(systemClock, delayMs);
        if (to.destroyed) break;
        if (chunk === null) to.end();
        else if (this.treatment.trickle === true) for (const byte of chunk) to.write(Buffer.of(byte));
        else if (limits === null || !endsWithin(chunk, to, from, limits)) to.write(chunk);
      }
      isPassing = false;
      if (held.length < MAX_HELD_CHUNKS) from.resume();
    };
    from.on('data', (chunk) => {
      held.push(chunk);
      if (held.length >= MAX_HELD_CHUNKS) from.pause();
      void pass();
    });
    from.on('end', () => {
      held.push(null);
      void pass();
    });
    return { flush: () => void pass() };
  }
}

/**
 * When the byte limit of the connection lies within this chunk, forwards the bytes before the limit, closes or resets the connection and
 * returns true. Otherwise returns false and forwards nothing.
 */
function endsWithin(chunk: Buffer, to: Socket, from: Socket, limits: Limits): boolean {
  const limit = limits.reset ?? limits.cut;
  if (limit === null) return false;
  const remaining = limit - limits.passedBytes;
  limits.passedBytes += chunk.length;
  if (remaining >= chunk.length) return false;
  if (remaining > 0) to.write(chunk.subarray(0, remaining));
  if (limits.reset === null) {
    to.end();
  } else {
    to.resetAndDestroy();
    from.destroy();
  }
  return true;
}
