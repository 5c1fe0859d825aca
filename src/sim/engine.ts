import { setImmediate as nextTurn } from 'node:timers/promises';
import { type Clock, sleep } from '../core/clock.ts';
import { FloeError } from '../core/errors.ts';
import { Semaphore } from '../core/semaphore.ts';
import type { FinishReason, VersionSpan } from '../schema/index.ts';
import type { Ledger, LedgerEntry } from './ledger.ts';
import type { Policy } from './policy.ts';
import { type CachedSequence, PrefixCache } from './prefix-cache.ts';
import { type Finish, type GenerateCall, Run, type SampledToken } from './run.ts';
import type { Piece } from './visible-text.ts';
import type { Vocabulary } from './vocabulary.ts';
import type { WeightStore } from './weights.ts';

/** Tokens sampled in one go when nothing limits them; then other connections get their turn. */
const BURST_TOKENS = 64;

export type GenerateEvent =
  | { readonly kind: 'start'; readonly cachedTokens: number }
  | { readonly kind: 'tokens'; readonly tokens: readonly SampledToken[]; readonly pieces: readonly Piece[] }
  | ({
      readonly kind: 'finish';
      /** The last ones; none when the call was aborted. */
      readonly tokens: readonly SampledToken[];
      readonly pieces: readonly Piece[];
      readonly entry: LedgerEntry;
      /** The versions as the server tells them. */
      readonly spans: readonly VersionSpan[];
    } & Finish);

export type EngineOptions = {
  readonly vocabulary: Vocabulary;
  readonly policy: Policy;
  readonly weights: WeightStore;
  readonly ledger: Ledger;
  readonly clock: Clock;
  readonly seed: number;
  readonly maxModelLen: number;
  readonly maxNumSeqs: number;
  /** Time to the first token, once a slot is taken. */
  readonly firstTokenDelayMs: number;
  /** Time per prompt token that the prefix cache does not have, before the first token. */
  readonly prefillTokenDelayMs: number;
  readonly tokenDelayMs: number;
  /** All delays are divided by it. */
  readonly speed: number;
  readonly cacheBlocks: number;
};

/** What metrics want to know. The functions must not throw. */
export type EngineEvents = {
  readonly onStart?: (promptTokens: number, cachedTokens: number) => void;
  readonly onTokens?: (count: number) => void;
  readonly onFinish?: (reason: FinishReason) => void;
};

/** Reason with which {@link SimEngine.abort} ends a run. */
const ABORTED = new FloeError('cancelled', 'the call was aborted');

type Gate = { readonly opened: Promise<void>; readonly open: () => void };

/**
 * The simulated engine without any wire format: slots, waiting queue, pause, abort, weights in flight. A face, vLLM's
 * or a later one, turns requests into {@link GenerateCall} and events into its replies.
 */
export class SimEngine {
  readonly options: EngineOptions;
  readonly cache: PrefixCache;
  private readonly events: EngineEvents;
  private readonly slots: Semaphore;
  private readonly runs = new Map<Run, Gate>();
  private serial = 0;
  private gate: Gate | null = null;

  constructor(options: EngineOptions, events: EngineEvents = {}) {
    this.options = options;
    this.events = events;
    this.slots = new Semaphore(options.maxNumSeqs);
    this.cache = new PrefixCache(options.cacheBlocks);
  }

  get running(): number {
    return this.slots.inUse;
  }

  get waiting(): number {
    return this.slots.waiting;
  }

  get paused(): boolean {
    return this.gate !== null;
  }

  /**
   * Samples one reply: `start` when a slot is taken, `tokens` as they come, `finish` with the last of them. An abort
   * ends it with reason `abort` and the tokens so far; leaving the iteration early aborts as well. The ledger has the entry before
   * `finish` is handed out. Never throws for an abort.
   */
  async *generate(call: GenerateCall): AsyncGenerator<GenerateEvent, void, undefined> {
    const { clock, ledger, seed, policy, vocabulary } = this.options;
    const run = new Run(call, { vocabulary, policy, randomKey: [seed, this.serial++], nowMs: clock.nowMs() });
    const ended = newGate();
    this.runs.set(run, ended);
    const onAbort = (): void => run.controller.abort(call.signal.reason);
    if (call.signal.aborted) onAbort();
    call.signal.addEventListener('abort', onAbort, { once: true });
    let release: (() => void) | null = null;
    let entry: LedgerEntry | undefined;
    let cached: CachedSequence | null = null;
    let last: readonly SampledToken[] = [];
    try {
      release = await this.enter(run);
      if (release !== null) {
        cached = this.cache.begin(call.promptIds, call.cacheSalt);
        const { cachedTokens } = cached;
        this.events.onStart?.(call.promptIds.length, cachedTokens);
        yield { kind: 'start', cachedTokens };
        last = yield* this.sample(run, cachedTokens);
      }
    } finally {
      run.finish ??= { reason: 'abort', stop: null };
      call.signal.removeEventListener('abort', onAbort);
      this.runs.delete(run);
      release?.();
      // The last token was sampled, but never computed with.
      cached?.extend(run.tokens.slice(0, -1).map(({ id }) => id));
      entry = ledger.append(run.entry(clock.nowMs()));
      this.events.onFinish?.(run.finish.reason);
      ended.open();
    }
    const spans = this.options.weights.announcedSpans(entry.version_spans);
    yield { kind: 'finish', ...run.finish, tokens: last, pieces: run.text.finish(), entry, spans };
  }

  /** Aborts the calls of these ids, all of them when none are given. Returns how many. */
  abort(requestIds?: readonly string[]): number {
    let count = 0;
    for (const run of this.runs.keys()) {
      if (requestIds !== undefined && !requestIds.includes(run.call.requestId)) continue;
      if (run.controller.signal.aborted) continue;
      run.controller.abort(ABORTED);
      count++;
    }
    return count;
  }

  /** Stops sampling until {@link resume}. `abort` ends what runs, `wait` lets it end, `keep` freezes it in place. */
  async pause(mode: 'abort' | 'wait' | 'keep'): Promise<void> {
    const earlier = this.gate;
    this.gate = newGate();
    const running = mode === 'keep' ? [] : [...this.runs];
    if (mode === 'wait') for (const [run] of running) run.exempt = true;
    if (mode === 'abort') this.abort();
    // Who waits at an earlier gate looks again, and waits at the new one unless this pause lets it end.
    earlier?.open();
    await Promise.all(running.map(([, ended]) => ended.opened));
  }

  resume(): void {
    this.gate?.open();
    this.gate = null;
  }

  /** Resolves when every call that is running or waiting now has ended. */
  async idle(): Promise<void> {
    await Promise.all([...this.runs.values()].map((ended) => ended.opened));
  }

  /** Takes a slot; null when the run was aborted before it got one. */
  private async enter(run: Run): Promise<(() => void) | null> {
    try {
      return await this.slots.acquire(run.controller.signal);
    } catch (reason) {
      if (run.controller.signal.aborted) return null;
      throw reason;
    }
  }

  /** Returns the tokens sampled but not yet handed out. */
  private async *sample(
    run: Run,
    cachedTokens: number,
  ): AsyncGenerator<GenerateEvent, readonly SampledToken[], undefined> {
    const { weights } = this.options;
    const pace = this.pace(run, cachedTokens);
    const perEvent = run.call.eventTokens ?? (pace.tokenMs > 0 ? 1 : BURST_TOKENS);
    let fresh: SampledToken[] = [];
    while (run.finish === null) {
      if (!(await this.ready(run, pace))) break;
      const before = fresh.length;
      const burst = pace.tokenMs > 0 ? pace.due() : Math.min(perEvent, BURST_TOKENS);
      for (let i = 0; i < burst && run.finish === null && !stalls(run); i++) {
        if (run.tokens.length === run.call.faults.swapAt) weights.swap();
        fresh.push(run.step(weights.current));
      }
      this.events.onTokens?.(fresh.length - before);
      if (run.finish !== null || (fresh.length < perEvent && !stalls(run))) continue;
      yield { kind: 'tokens', tokens: fresh, pieces: run.text.release() };
      fresh = [];
    }
    return fresh;
  }

  private pace(run: Run, cachedTokens: number): Pace {
    const { clock, firstTokenDelayMs, prefillTokenDelayMs, tokenDelayMs, speed } = this.options;
    const { promptIds, faults } = run.call;
    const scale = faults.slowFactor / speed;
    const firstMs = firstTokenDelayMs + prefillTokenDelayMs * (promptIds.length - cachedTokens);
    return new Pace(clock, firstMs * scale, tokenDelayMs * scale);
  }

  /** Waits for the token's time, and while paused or stalled. False when the run was aborted meanwhile. */
  private async ready(run: Run, pace: Pace): Promise<boolean> {
    const { signal } = run.controller;
    try {
      const delayMs = pace.next();
      if (delayMs > 0) await sleep(this.options.clock, delayMs, signal);
      else await nextTurn();
      while (this.gate !== null && !run.exempt) {
        await orAborted(this.gate.opened, signal);
        pace.restart();
      }
      if (stalls(run)) await orAborted(new Promise<never>(() => {}), signal);
    } catch (reason) {
      if (!signal.aborted) throw reason;
    }
    return !signal.aborted;
  }
}

/** When the tokens of one reply are due. A timer that fires late is made up for, so that rates hold on a busy machine. */
class Pace {
  readonly tokenMs: number;
  private readonly clock: Clock;
  /** Time of the latest token; before the first one, the end of the prefill. */
  private atMs: number;

  constructor(clock: Clock, firstMs: number, tokenMs: number) {
    this.clock = clock;
    this.tokenMs = tokenMs;
    this.atMs = clock.monotonicMs() + firstMs;
  }

  /** Time to wait for the next token. */
  next(): number {
    return this.atMs + this.tokenMs - this.clock.monotonicMs();
  }

  /** Takes all tokens that are due by now, at least one. */
  due(): number {
    const count = Math.max(1, Math.floor((this.clock.monotonicMs() - this.atMs) / this.tokenMs));
    const taken = Math.min(count, BURST_TOKENS);
    this.atMs += taken * this.tokenMs;
    return taken;
  }

  /** The next token is due now: what time passed meanwhile, nothing was sampled in. */
  restart(): void {
    this.atMs = this.clock.monotonicMs() - this.tokenMs;
  }
}

function stalls({ call, tokens }: Run): boolean {
  return call.faults.stallAt !== null && tokens.length >= call.faults.stallAt;
}

function newGate(): Gate {
  let open = (): void => {};
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { opened, open };
}

/** Settles with `promise`, or rejects with the signal's reason when that comes first. */
function orAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    if (signal.aborted) return reject(signal.reason);
    const onAbort = (): void => reject(signal.reason);
    signal.addEventListener('abort', onAbort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', onAbort));
  });
}
