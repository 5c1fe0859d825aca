// A TCP proxy that delays, cuts and resets connections. It needs no netem in the kernel.
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { sleep, systemClock } from '../../src/core/clock.ts';

/** How the proxy treats connections. Every function is called again for each connection or chunk, so that the treatment can be random. */
export type Treatment = {
  /** Returns the delay in milliseconds before the next chunk is forwarded. */
  readonly delayMs?: () => number;
  /** Directions whose bytes are held back, as when packets are lost on the route. `up` is client to server. */
  readonly frozen?: 'both' | Direction;
  /** Returns the number of reply bytes after which a connection is reset; `null` when it is not reset. */
  readonly resetAfter?: () => number | null;
  /** Returns the number of reply bytes after which a connection is closed with FIN; `null` when it is not closed. */
  readonly cutAfter?: () => number | null;
  /** Whether each byte is written separately. */
  readonly trickle?: boolean;
  /** Whether new connections are closed immediately. */
  readonly refuse?: boolean;
};

type Direction = 'up' | 'down';
type Limits = { readonly reset: number | null; readonly cut: number | null; passedBytes: number };
/** One direction of a connection. `flush` forwards the bytes that were held back. */
type Pipe = { readonly flush: () => void };

/** Maximum number of chunks that are held back in one direction; then the proxy stops reading from the sender. */
const MAX_HELD_CHUNKS = 64;

export class ChaosProxy {
  private readonly target: () => { readonly host: string; readonly port: number };
  private readonly server: Server;
  private readonly connections = new Set<readonly Pipe[]>();
  private treatment: Treatment = {};

  /** Starts a proxy on loopback. `target` returns the address of the server for each new connection. */
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
   * Changes the treatment of new and open connections. Bytes that a frozen direction held back are forwarded when the new treatment does
   * not freeze it.
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
    /** Chunks that wait to be forwarded, in order; `null` marks the end of the stream. */
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
 * Forwards the part of the chunk before the byte limit and closes or resets the connection there. Returns whether it did so; returns
 * `false` when the limit lies after this chunk.
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
