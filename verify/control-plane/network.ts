import { onAbort } from '../../src/core/abort.ts';
import { FloeError } from '../../src/core/errors.ts';
import type { SeededRandom } from './random.ts';
import type { SimProcess } from './sim-process.ts';
import type { Timeline } from './timeline.ts';

/** Fault rates of a network, as probabilities per message. */
export type NetworkFaults = {
  readonly drop: number;
  readonly slow: number;
  readonly duplicate: number;
  /** The reply is lost after the request had its effect. */
  readonly loseReply: number;
};

export const RELIABLE_NETWORK: NetworkFaults = { drop: 0, slow: 0, duplicate: 0, loseReply: 0 };

/** An address on the network. `process` listens there; `null` when none does. */
export type Host = { readonly name: string; process: SimProcess | null };

export type Request<T> = {
  readonly to: Host;
  /** Name of the request for events and errors. */
  readonly name: string;
  /** Handles the request in the process of `to`. `disconnected` aborts when the caller disconnects. */
  readonly handle: (disconnected: AbortSignal) => Promise<T>;
  readonly signal?: AbortSignal | undefined;
};

/** Latency of one message, ms. A slow message was retransmitted or waited in a full queue. */
const LATENCY_MS = { from: 0.5, to: 6 };
const SLOW_LATENCY_MS = { from: 50, to: 3_000 };
/** Time until a caller learns that its call failed, ms: a reset arrives soon, an unresponsive peer is found by a timeout. */
const RESET_MS = { from: 5, to: 300 };
const TIMEOUT_MS = { from: 500, to: 8_000 };

/** A call whose caller waits for the reply. The caller disconnects when its signal aborts or its process is killed. */
class PendingCall<T> {
  private readonly caller: SimProcess;
  private readonly settle: { resolve: (value: T) => void; reject: (reason: unknown) => void };
  private readonly removeListeners: () => void;
  private isSettled = false;
  private disconnect: () => void = () => {};

  constructor(
    caller: SimProcess,
    signal: AbortSignal | undefined,
    resolve: (value: T) => void,
    reject: (reason: unknown) => void,
  ) {
    this.caller = caller;
    this.settle = { resolve, reject };
    const removeAbortListener = onAbort(signal, () => {
      this.disconnect();
      this.end(() => reject(signal?.reason));
    });
    const removeKillListener = caller.onKill(() => {
      this.isSettled = true;
      this.disconnect();
    });
    this.removeListeners = () => {
      removeAbortListener();
      removeKillListener();
    };
  }

  onDisconnect(callback: () => void): void {
    this.disconnect = callback;
  }

  resolve(value: T): void {
    this.caller.execute(() => this.end(() => this.settle.resolve(value)));
  }

  reject(reason: unknown): void {
    this.caller.execute(() => this.end(() => this.settle.reject(reason)));
  }

  private end(action: () => void): void {
    if (this.isSettled) return;
    this.isSettled = true;
    this.removeListeners();
    action();
  }
}

/** Calls between processes over links with injected faults. */
export class Network {
  faults: NetworkFaults = RELIABLE_NETWORK;
  private readonly timeline: Timeline;
  private readonly random: SeededRandom;
  /** Links that drop all messages, as `from>to`. */
  private readonly cutLinks = new Set<string>();

  constructor(timeline: Timeline, random: SeededRandom) {
    this.timeline = timeline;
    this.random = random;
  }

  /** Cuts the link from host `a` to host `b`, and the link back unless `oneWay`. */
  partition(a: string, b: string, oneWay: boolean): void {
    this.cutLinks.add(`${a}>${b}`);
    if (!oneWay) this.cutLinks.add(`${b}>${a}`);
  }

  /** Restores all links. */
  heal(): void {
    this.cutLinks.clear();
  }

  /** Rejects with `peer_unreachable` when no reply arrives; whether the request had its effect is then unknown. */
  call<T>(from: SimProcess, request: Request<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      if (request.signal?.aborted) reject(request.signal.reason);
      else this.send(from, request, new PendingCall(from, request.signal, resolve, reject));
    });
  }

  private send<T>(from: SimProcess, request: Request<T>, pending: PendingCall<T>): void {
    const { to, name, handle } = request;
    const { random, timeline, faults } = this;
    const disconnected = new AbortController();
    pending.onDisconnect(() => {
      if (!this.isConnected(from.name, to.name)) return;
      timeline.after(this.latencyMs(), () => disconnected.abort(disconnectError()));
    });
    const fail = (range: { from: number; to: number }, reason: string): void => {
      const error = new FloeError('peer_unreachable', `${name}: ${to.name} ${reason}`);
      timeline.after(random.between(range.from, range.to), () => pending.reject(error));
    };
    if (!this.isConnected(from.name, to.name) || random.chance(faults.drop)) {
      if (random.chance(0.5)) fail(RESET_MS, 'reset the connection');
      else fail(TIMEOUT_MS, 'did not answer');
      return;
    }
    if (random.chance(faults.duplicate)) this.sendDuplicate(from, to, name, handle);
    timeline.after(this.latencyMs(), () => {
      const target = to.process;
      if (target === null || !target.alive) {
        fail(RESET_MS, 'refused the connection');
        return;
      }
      const removeKillListener = target.onKill(() => fail(RESET_MS, 'broke the connection'));
      const reply = (deliver: () => void): void => {
        removeKillListener();
        if (this.isConnected(to.name, from.name) && !random.chance(this.faults.loseReply)) {
          timeline.after(this.latencyMs(), deliver);
          return;
        }
        timeline.record('network', `loses the reply to ${name} of ${from.name}`);
        fail(random.chance(0.5) ? RESET_MS : TIMEOUT_MS, 'lost the reply');
      };
      target.execute(() => {
        // A request whose caller disconnected before it was accepted is not handled.
        if (disconnected.signal.aborted) removeKillListener();
        else {
          handle(disconnected.signal).then(
            (value) => reply(() => pending.resolve(value)),
            (thrown: unknown) => reply(() => pending.reject(thrown)),
          );
        }
      });
    });
  }

  /** Sends a copy of a request, which arrives at another time than the original. Its reply is dropped. */
  private sendDuplicate<T>(
    from: SimProcess,
    to: Host,
    name: string,
    handle: (disconnected: AbortSignal) => Promise<T>,
  ): void {
    const disconnected = new AbortController();
    const delayMs =
      this.latencyMs() + this.random.between(0, this.random.chance(0.2) ? SLOW_LATENCY_MS.to : LATENCY_MS.to);
    this.timeline.after(delayMs, () => {
      const target = to.process;
      if (target === null || !target.alive) return;
      this.timeline.record('network', `delivers ${name} of ${from.name} to ${to.name} a second time`);
      target.execute(() => void handle(disconnected.signal).catch(() => undefined));
      this.timeline.after(this.random.between(RESET_MS.from, RESET_MS.to), () => disconnected.abort(disconnectError()));
    });
  }

  private isConnected(from: string, to: string): boolean {
    return !this.cutLinks.has(`${from}>${to}`);
  }

  private latencyMs(): number {
    const { from, to } = this.random.chance(this.faults.slow) ? SLOW_LATENCY_MS : LATENCY_MS;
    return this.random.between(from, to);
  }
}

function disconnectError(): FloeError {
  return new FloeError('bad_request', 'the client disconnected');
}
