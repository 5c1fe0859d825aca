import { FloeError, onAbort } from '@floe-rl/core';
import type { SeededRandom } from './random.ts';
import type { SimProcess } from './sim-process.ts';
import type { Timeline } from './timeline.ts';

/** Probability of each fault of the simulated network, per message. */
export type NetworkFaults = {
  readonly drop: number;
  readonly slow: number;
  readonly duplicate: number;
  /** Probability that the reply to a request is lost although the request was processed. */
  readonly loseReply: number;
};

export const RELIABLE_NETWORK: NetworkFaults = { drop: 0, slow: 0, duplicate: 0, loseReply: 0 };

/** A machine on the simulated network. `process` is the process on it that accepts calls; `null` when no process accepts calls. */
export type Host = { readonly name: string; process: SimProcess | null };

export type Request<T> = {
  readonly to: Host;
  /** Name of the request in the event log and in error messages. */
  readonly name: string;
  /** Handles the request in the process that runs on host `to`. `disconnected` aborts when the caller disconnects. */
  readonly handle: (disconnected: AbortSignal) => Promise<T>;
  readonly signal?: AbortSignal | undefined;
};

/** Range in ms from which the latency of one message is drawn. */
const LATENCY_MS = { from: 0.5, to: 6 };
/** Range in ms from which the latency of a slow message is drawn. Slow messages represent retransmissions and full queues. */
const SLOW_LATENCY_MS = { from: 50, to: 3_000 };
/** When the connection of a call is refused or reset, the call rejects after a random time in this range, in ms. */
const RESET_MS = { from: 5, to: 300 };
/** A call to an unresponsive host rejects with a timeout after a random time in this range, in ms. */
const TIMEOUT_MS = { from: 500, to: 8_000 };

/** A call whose caller waits for the reply. The call counts as disconnected when its signal aborts or the caller's process is killed. */
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

/** Delivers calls between simulated processes, with injected faults. */
export class Network {
  faults: NetworkFaults = RELIABLE_NETWORK;
  private readonly timeline: Timeline;
  private readonly random: SeededRandom;
  /** Pairs of hosts, written as `from>to`. All messages from the first host to the second are dropped. */
  private readonly cutLinks = new Set<string>();

  constructor(timeline: Timeline, random: SeededRandom) {
    this.timeline = timeline;
    this.random = random;
  }

  /** Drops all messages from host `a` to host `b`, and also all messages from `b` to `a` unless `oneWay` is true. */
  partition(a: string, b: string, oneWay: boolean): void {
    this.cutLinks.add(`${a}>${b}`);
    if (!oneWay) this.cutLinks.add(`${b}>${a}`);
  }

  /** Ends all partitions, so that every host can send to every other host. */
  heal(): void {
    this.cutLinks.clear();
  }

  /**
   * Sends a request from a process and resolves to the reply. Rejects with `peer_unreachable` when no reply arrives; the receiver may have
   * processed the request nevertheless.
   */
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
        // When the caller has disconnected before the receiving process takes the request, the request is not handled.
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

  /** Sends a second copy of a request, which arrives at another time than the first copy. The reply to the second copy is dropped. */
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
