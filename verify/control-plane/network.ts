import { FloeError } from '../../src/core/errors.ts';
import type { Dice } from './dice.ts';
import type { SimProcess } from './sim-process.ts';
import type { Timeline } from './timeline.ts';

/** How bad the network is; all are chances of one message. */
export type NetworkFaults = {
  readonly drop: number;
  readonly slow: number;
  readonly duplicate: number;
  /** Of a reply that is lost after the request had its effect. */
  readonly loseReply: number;
};

export const GOOD_NETWORK: NetworkFaults = { drop: 0, slow: 0, duplicate: 0, loseReply: 0 };

/** A place on the network where a process may be listening. */
export type Host = { readonly name: string; process: SimProcess | null };

export type Request<T> = {
  readonly to: Host;
  readonly what: string;
  /** Runs in the process of `to`; `gone` aborts when the caller hangs up. */
  readonly handle: (gone: AbortSignal) => Promise<T>;
  readonly signal?: AbortSignal | undefined;
};

/** A message takes this long, ms; a slow one is a retransmission or a full queue on its way. */
const DELAY_MS = { from: 0.5, to: 6 };
const SLOW_MS = { from: 50, to: 3_000 };
/** Until a caller notices that nothing comes back, ms: a reset is quick, a silent peer is found by a timeout. */
const RESET_MS = { from: 5, to: 300 };
const SILENCE_MS = { from: 500, to: 8_000 };

/** A caller that waits for an answer. It hangs up when its signal aborts or it is killed. */
class Waiting<T> {
  private readonly from: SimProcess;
  private readonly settle: { resolve: (value: T) => void; reject: (reason: unknown) => void };
  private readonly stopListening: () => void;
  private settled = false;
  private hangUp: () => void = () => {};

  constructor(
    from: SimProcess,
    signal: AbortSignal | undefined,
    resolve: (value: T) => void,
    reject: (reason: unknown) => void,
  ) {
    this.from = from;
    this.settle = { resolve, reject };
    const abort = (): void => {
      this.hangUp();
      this.end(() => reject(signal?.reason));
    };
    signal?.addEventListener('abort', abort, { once: true });
    const forget = from.onKill(() => {
      this.settled = true;
      this.hangUp();
    });
    this.stopListening = () => {
      signal?.removeEventListener('abort', abort);
      forget();
    };
  }

  onHangUp(callback: () => void): void {
    this.hangUp = callback;
  }

  resolve(value: T): void {
    this.from.enter(() => this.end(() => this.settle.resolve(value)));
  }

  reject(reason: unknown): void {
    this.from.enter(() => this.end(() => this.settle.reject(reason)));
  }

  private end(action: () => void): void {
    if (this.settled) return;
    this.settled = true;
    this.stopListening();
    action();
  }
}

/** Calls between processes, over links that may fail. */
export class Network {
  faults: NetworkFaults = GOOD_NETWORK;
  private readonly timeline: Timeline;
  private readonly dice: Dice;
  /** `from>to` of links that let nothing through. */
  private readonly cut = new Set<string>();

  constructor(timeline: Timeline, dice: Dice) {
    this.timeline = timeline;
    this.dice = dice;
  }

  partition(a: string, b: string, oneWay: boolean): void {
    this.cut.add(`${a}>${b}`);
    if (!oneWay) this.cut.add(`${b}>${a}`);
  }

  heal(): void {
    this.cut.clear();
  }

  /** Rejects with `peer_unreachable` when no answer comes; whether the request had its effect is then unknown. */
  call<T>(from: SimProcess, request: Request<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      if (request.signal?.aborted) reject(request.signal.reason);
      else this.send(from, request, new Waiting(from, request.signal, resolve, reject));
    });
  }

  private send<T>(from: SimProcess, request: Request<T>, waiting: Waiting<T>): void {
    const { to, what, handle } = request;
    const { dice, timeline, faults } = this;
    const gone = new AbortController();
    waiting.onHangUp(() => {
      if (this.passes(from.name, to.name)) timeline.after(this.delayMs(), () => gone.abort(hungUp()));
    });
    const fail = (range: { from: number; to: number }, why: string): void => {
      const error = new FloeError('peer_unreachable', `${what}: ${to.name} ${why}`);
      timeline.after(dice.between(range.from, range.to), () => waiting.reject(error));
    };
    if (!this.passes(from.name, to.name) || dice.chance(faults.drop)) {
      if (dice.chance(0.5)) fail(RESET_MS, 'reset the connection');
      else fail(SILENCE_MS, 'did not answer');
      return;
    }
    if (dice.chance(faults.duplicate)) this.repeat(from, to, what, handle);
    timeline.after(this.delayMs(), () => {
      const target = to.process;
      if (target === null || !target.alive) {
        fail(RESET_MS, 'refused the connection');
        return;
      }
      const forgetServer = target.onKill(() => fail(RESET_MS, 'broke the connection'));
      const answer = (deliver: () => void): void => {
        forgetServer();
        if (this.passes(to.name, from.name) && !dice.chance(this.faults.loseReply)) {
          timeline.after(this.delayMs(), deliver);
          return;
        }
        timeline.note('network', `the reply to ${what} of ${from.name} is lost`);
        fail(dice.chance(0.5) ? RESET_MS : SILENCE_MS, 'lost the reply');
      };
      target.enter(() => {
        // Nobody reads a request whose sender had hung up before it was taken.
        if (gone.signal.aborted) forgetServer();
        else {
          handle(gone.signal).then(
            (value) => answer(() => waiting.resolve(value)),
            (thrown: unknown) => answer(() => waiting.reject(thrown)),
          );
        }
      });
    });
  }

  /** A copy of the request that arrives some other time; nobody waits for its answer. */
  private repeat<T>(from: SimProcess, to: Host, what: string, handle: (gone: AbortSignal) => Promise<T>): void {
    const gone = new AbortController();
    const delayMs = this.delayMs() + this.dice.between(0, this.dice.chance(0.2) ? SLOW_MS.to : DELAY_MS.to);
    this.timeline.after(delayMs, () => {
      const target = to.process;
      if (target === null || !target.alive) return;
      this.timeline.note('network', `${what} of ${from.name} arrives at ${to.name} once more`);
      target.enter(() => void handle(gone.signal).catch(() => undefined));
      this.timeline.after(this.dice.between(RESET_MS.from, RESET_MS.to), () => gone.abort(hungUp()));
    });
  }

  private passes(from: string, to: string): boolean {
    return !this.cut.has(`${from}>${to}`);
  }

  private delayMs(): number {
    const slow = this.dice.chance(this.faults.slow);
    return slow ? this.dice.between(SLOW_MS.from, SLOW_MS.to) : this.dice.between(DELAY_MS.from, DELAY_MS.to);
  }
}

function hungUp(): FloeError {
  return new FloeError('bad_request', 'the client hung up');
}
