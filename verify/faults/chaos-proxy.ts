// A TCP proxy that delays, cuts and resets connections, in ways that a kernel without netem cannot.
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { sleep, systemClock } from '../../src/core/clock.ts';

/** How connections are treated. Every function is called for each connection or chunk, so that a treatment can be random. */
export type Treatment = {
  /** Delay before each chunk is passed on, in milliseconds. */
  readonly delayMs?: () => number;
  /** Directions whose bytes are held back, as by a dropped route: `up` is client to server. */
  readonly frozen?: 'both' | Direction;
  /** Number of reply bytes after which the connection is reset; `null` for never. */
  readonly resetAfter?: () => number | null;
  /** Number of reply bytes after which the connection ends in order; `null` for never. */
  readonly cutAfter?: () => number | null;
  /** Writes one byte at a time. */
  readonly trickle?: boolean;
  /** Closes new connections immediately. */
  readonly refuse?: boolean;
};

type Direction = 'up' | 'down';
type Limits = { readonly reset: number | null; readonly cut: number | null; passedBytes: number };
/** One direction of a connection; `flush` passes on what was held back. */
type Pipe = { readonly flush: () => void };

/** Chunks that are held back in one direction before its source is paused. */
const MAX_HELD_CHUNKS = 64;

export class ChaosProxy {
  private readonly target: () => { readonly host: string; readonly port: number };
  private readonly server: Server;
  private readonly connections = new Set<readonly Pipe[]>();
  private treatment: Treatment = {};

  /** Listens on loopback; `target` names the server of each new connection. */
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

  /** Changes the treatment of new and open connections; bytes that a freeze held back are passed on when it ends. */
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
    /** `null` is the end of the stream. */
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

/** Whether the connection ended within this chunk, which then has been passed on in part. */
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
