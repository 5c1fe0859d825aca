// A TCP proxy that treats connections badly, in ways that a kernel without netem cannot.
import { connect, createServer } from 'node:net';

/**
 * `target()` gives { host, port } for each new connection. `treat` may be replaced at any time:
 *   delayMs(): before each chunk; frozen: 'none' | 'both' | 'up' | 'down': bytes of that direction go nowhere, as behind a dropped route;
 *   resetAfter(): bytes of the reply after which the connection is reset, or null; cutAfter(): as resetAfter, with an orderly end;
 *   trickle: one byte at a time; refuse: new connections are closed at once.
 */
export class ChaosProxy {
  static async start(target, treat = {}) {
    const proxy = new ChaosProxy(target, treat);
    await new Promise((resolve) => proxy.server.listen(0, '127.0.0.1', resolve));
    return proxy;
  }

  constructor(target, treat) {
    this.target = target;
    this.treat = treat;
    this.pairs = new Set();
    this.connections = 0;
    this.server = createServer({ allowHalfOpen: true }, (client) => this.accept(client));
  }

  get port() {
    return this.server.address().port;
  }

  get url() {
    return `http://127.0.0.1:${this.port}`;
  }

  /** Changes the treatment; bytes held back by a freeze go on when it ends. */
  set(treat) {
    this.treat = treat;
    for (const pair of this.pairs) for (const direction of pair) direction.flush();
  }

  accept(client) {
    this.connections++;
    if (this.treat.refuse) {
      client.destroy();
      return;
    }
    const server = connect({ ...this.target(), allowHalfOpen: true });
    const limits = { reset: this.treat.resetAfter?.() ?? null, cut: this.treat.cutAfter?.() ?? null, passed: 0 };
    const pair = [this.pipe(client, server, 'up', null), this.pipe(server, client, 'down', limits)];
    this.pairs.add(pair);
    const gone = () => {
      this.pairs.delete(pair);
      client.destroy();
      server.destroy();
    };
    for (const socket of [client, server]) socket.on('error', gone).on('close', gone);
  }

  pipe(from, to, direction, limits) {
    const held = [];
    let running = false;
    const frozen = () => this.treat.frozen === 'both' || this.treat.frozen === direction;
    const pass = async () => {
      if (running) return;
      running = true;
      while (held.length > 0 && !frozen()) {
        const chunk = held.shift();
        const delayMs = this.treat.delayMs?.() ?? 0;
        if (delayMs > 0) await new Promise((resolve) => setTimeout(resolve, delayMs));
        if (to.destroyed) break;
        if (chunk === null) to.end();
        else if (this.treat.trickle) for (const byte of chunk) to.write(Buffer.of(byte));
        else if (!this.limited(chunk, to, from, limits)) to.write(chunk);
      }
      running = false;
      if (held.length < 64) from.resume();
    };
    from.on('data', (chunk) => {
      held.push(chunk);
      if (held.length >= 64) from.pause();
      void pass();
    });
    from.on('end', () => {
      held.push(null);
      void pass();
    });
    return { flush: pass };
  }

  /** True when the connection ended within this chunk. */
  limited(chunk, to, from, limits) {
    if (limits === null) return false;
    const limit = limits.reset ?? limits.cut;
    if (limit === null) return false;
    const room = limit - limits.passed;
    limits.passed += chunk.length;
    if (room >= chunk.length) return false;
    if (room > 0) to.write(chunk.subarray(0, room));
    if (limits.reset !== null) {
      to.resetAndDestroy();
      from.destroy();
    } else to.end();
    return true;
  }

  async close() {
    for (const socket of [...this.pairs]) for (const direction of socket) direction.flush();
    this.server.close();
    this.set({ refuse: true });
  }
}
