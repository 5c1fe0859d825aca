import { type Clock, FloeError, nextEventLoopTurn, onAbort, raceAbort, Semaphore, sleep } from '@floe-rl/core';
import type { FinishReason, VersionSpan } from '@floe-rl/core/schema';
import type { Ledger, LedgerEntry } from './ledger.ts';
import type { Policy } from './policy/policy.ts';
import type { WeightStore } from './policy/weights.ts';
import { type CachedSequence, PrefixCache } from './prefix-cache.ts';
import { type Finish, type GenerateCall, Run, type SampledToken } from './run.ts';
import type { TextPiece } from './visible-text.ts';
import type { Vocabulary } from './vocabulary.ts';

/** Maximum number of tokens that are sampled before the engine yields to the event loop, so that other connections are served. */
const BURST_TOKENS = 64;

/**
 * One event of a sampled reply. A reply yields `start`, then any number of `tokens`, then `finish`; an aborted call may end without
 * `start`.
 */
export type GenerateEvent =
  | { readonly kind: 'start'; readonly cachedTokens: number }
  | { readonly kind: 'tokens'; readonly tokens: readonly SampledToken[]; readonly pieces: readonly TextPiece[] }
  | ({
      readonly kind: 'finish';
      /** The tokens sampled since the previous event. */
      readonly tokens: readonly SampledToken[];
      readonly pieces: readonly TextPiece[];
      readonly entry: LedgerEntry;
      /**
       * The policy versions that the server reports. Under an injected fault, these can differ from the versions that the ledger entry
       * records.
       */
      readonly spans: readonly VersionSpan[];
    } & Finish);

export type EngineOptions = {
  readonly vocabulary: Vocabulary;
  readonly policy: Policy;
  readonly weights: WeightStore;
  readonly ledger: Ledger;
  readonly clock: Clock;
  readonly seed: number;
  /** Maximum number of tokens of prompt and reply together. */
  readonly maxModelLen: number;
  /** Maximum number of replies that are sampled concurrently. */
  readonly maxNumSeqs: number;
  /**
   * Milliseconds from the start of a call, after it waited in the queue, to its first token. They are added to `prefillTokenDelayMs` and
   * `tokenDelayMs`.
   */
  readonly firstTokenDelayMs: number;
  /** Milliseconds before the first token for each prompt token that is not in the prefix cache. */
  readonly prefillTokenDelayMs: number;
  readonly tokenDelayMs: number;
  /** All delays are divided by this factor. */
  readonly speed: number;
  /** Capacity of the prefix cache in blocks of 16 tokens. */
  readonly cacheBlocks: number;
};

/** Callbacks that update metrics when calls start and finish. They must not throw. */
export type EngineEvents = {
  readonly onStart?: (promptTokens: number, cachedTokens: number) => void;
  readonly onTokens?: (count: number) => void;
  readonly onFinish?: (reason: FinishReason) => void;
};

/** The abort reason of every call that {@link SimEngine.abort} aborts. */
const ABORTED = new FloeError('cancelled', 'the call was aborted');

type Gate = { readonly opened: Promise<void>; readonly open: () => void };

/**
 * The simulated engine without any wire format. It manages slots, the waiting queue, pauses, aborts and weight updates during replies. The
 * routes of an API convert requests to {@link GenerateCall} and convert the engine's events to replies.
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

  /** Number of calls that hold one of the `maxNumSeqs` slots in which replies are sampled. */
  get running(): number {
    return this.slots.inUse;
  }

  /** Number of calls that wait in the queue for one of the `maxNumSeqs` slots. */
  get waiting(): number {
    return this.slots.waiting;
  }

  get paused(): boolean {
    return this.gate !== null;
  }

  /**
   * Samples one reply. Yields `start` when the call leaves the queue, `tokens` during sampling, and `finish` with the last tokens. An
   * aborted call ends with reason `abort` and the tokens sampled so far, without an error; leaving the iteration early aborts the call as
   * well. The ledger entry is written before `finish` is yielded.
   */
  async *generate(call: GenerateCall): AsyncGenerator<GenerateEvent, void, undefined> {
    const { clock, ledger, seed, policy, vocabulary } = this.options;
    const run = new Run(call, { vocabulary, policy, randomKey: [seed, this.serial++], nowMs: clock.nowMs() });
    const ended = newGate();
    this.runs.set(run, ended);
    const removeListener = onAbort(call.signal, () => run.controller.abort(call.signal.reason));
    let release: (() => void) | null = null;
    let entry: LedgerEntry | undefined;
    let cached: CachedSequence | null = null;
    let last: readonly SampledToken[] = [];
    try {
      release = await this.takeSlot(run);
      if (release !== null) {
        cached = this.cache.admit(call.promptIds, call.cacheSalt, this.options.weights.current.version);
        const { cachedTokens } = cached;
        this.events.onStart?.(call.promptIds.length, cachedTokens);
        yield { kind: 'start', cachedTokens };
        last = yield* this.sample(run, cachedTokens);
      }
    } finally {
      run.finish ??= { reason: 'abort', stop: null };
      removeListener();
      this.runs.delete(run);
      release?.();
      // The last sampled token is not added to the prefix cache: the engine has not used it as input yet, so a real cache would not contain
      // it. The cache entry of a token is computed when the next token is sampled, with the weights of the next token.
      const ids = run.tokens.slice(0, -1).map(({ id }) => id);
      cached?.extend(
        ids,
        run.tokens.slice(1).map(({ version }) => version),
      );
      entry = ledger.append(run.entry(clock.nowMs(), cached?.versionSpans ?? []));
      this.events.onFinish?.(run.finish.reason);
      ended.open();
    }
    const spans = this.options.weights.reportedSpans(entry.version_spans);
    yield { kind: 'finish', ...run.finish, tokens: last, pieces: run.text.finish(), entry, spans };
  }

  /** Aborts the calls with these request ids, or all calls when no list is given. Returns the number of calls aborted. */
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

  /**
   * Stops sampling until {@link resume} is called. Mode `abort` aborts running calls, `wait` lets them finish, and `keep` freezes them.
   * Resolves when all calls that this pause aborts or lets finish have ended.
   */
  async pause(mode: 'abort' | 'wait' | 'keep'): Promise<void> {
    const earlier = this.gate;
    this.gate = newGate();
    const running = mode === 'keep' ? [] : [...this.runs];
    if (mode === 'wait') for (const [run] of running) run.exempt = true;
    if (mode === 'abort') this.abort();
    // Calls that an earlier pause froze wait for the gate `earlier`. When it opens, each of these calls checks whether the new pause
    // freezes the call as well.
    earlier?.open();
    await Promise.all(running.map(([, ended]) => ended.opened));
  }

  /** Ends the current pause. Does nothing when the engine is not paused. */
  resume(): void {
    this.gate?.open();
    this.gate = null;
  }

  /** Resolves when every call that is running or waiting now has ended. */
  async idle(): Promise<void> {
    await Promise.all([...this.runs.values()].map((ended) => ended.opened));
  }

  /**
   * Waits for one of the `maxNumSeqs` slots and returns the function that releases it. Returns `null` when the call is aborted before it
   * gets one.
   */
  private async takeSlot(run: Run): Promise<(() => void) | null> {
    try {
      return await this.slots.acquire(run.controller.signal);
    } catch (reason) {
      if (run.controller.signal.aborted) return null;
      throw reason;
    }
  }

  /** Samples tokens until the reply has ended or was aborted. Returns the tokens that were sampled but not yielded yet. */
  private async *sample(
    run: Run,
    cachedTokens: number,
  ): AsyncGenerator<GenerateEvent, readonly SampledToken[], undefined> {
    const { weights } = this.options;
    const pace = this.pace(run, cachedTokens);
    const perEvent = run.call.eventTokens ?? (pace.tokenMs > 0 ? 1 : BURST_TOKENS);
    let fresh: SampledToken[] = [];
    while (run.finish === null) {
      if (!(await this.waitForToken(run, pace))) break;
      const before = fresh.length;
      const burst = pace.tokenMs > 0 ? pace.takeDue() : Math.min(perEvent, BURST_TOKENS);
      for (let i = 0; i < burst && run.finish === null && !isStalled(run); i++) {
        if (run.tokens.length === run.call.faults.swapAt) weights.swapUnannounced();
        fresh.push(run.step(weights.current));
      }
      this.events.onTokens?.(fresh.length - before);
      // The first token is sent at once, as vLLM and SGLang do with any interval.
      const isFirst = fresh.length === run.tokens.length;
      if (run.finish !== null || (fresh.length < perEvent && !isFirst && !isStalled(run))) continue;
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

  /**
   * Waits until the next token is due. Also waits while the engine is paused or an injected fault stalls the reply. Returns `false` when
   * the call was aborted.
   */
  private async waitForToken(run: Run, pace: Pace): Promise<boolean> {
    const { signal } = run.controller;
    try {
      const delayMs = pace.delayMs();
      if (delayMs > 0) await sleep(this.options.clock, delayMs, signal);
      else await nextEventLoopTurn();
      while (this.gate !== null && !run.exempt) {
        await raceAbort(this.gate.opened, signal);
        pace.restart();
      }
      if (isStalled(run)) await raceAbort(new Promise<never>(() => {}), signal);
    } catch (reason) {
      if (!signal.aborted) throw reason;
    }
    return !signal.aborted;
  }
}

/**
 * Computes when the tokens of one reply are due. When a timer fires late, all overdue tokens are sampled together, so that token rates stay
 * correct on a busy machine.
 */
class Pace {
  readonly tokenMs: number;
  private readonly clock: Clock;
  /** Monotonic time in milliseconds at which the latest token was due; before the first token, the time at which the prefill ends. */
  private atMs: number;

  constructor(clock: Clock, firstMs: number, tokenMs: number) {
    this.clock = clock;
    this.tokenMs = tokenMs;
    this.atMs = clock.monotonicMs() + firstMs;
  }

  /** Returns the milliseconds until the next token is due; the value is negative when the token is overdue. */
  delayMs(): number {
    return this.atMs + this.tokenMs - this.clock.monotonicMs();
  }

  /** Marks all tokens that are due now as taken. Returns their number, from 1 to {@link BURST_TOKENS}. */
  takeDue(): number {
    const count = Math.max(1, Math.floor((this.clock.monotonicMs() - this.atMs) / this.tokenMs));
    const taken = Math.min(count, BURST_TOKENS);
    this.atMs += taken * this.tokenMs;
    return taken;
  }

  /**
   * Makes the next token due immediately after a pause. Without this, all tokens that became due during the pause would be sampled
   * together.
   */
  restart(): void {
    this.atMs = this.clock.monotonicMs() - this.tokenMs;
  }
}

function isStalled({ call, tokens }: Run): boolean {
  return call.faults.stallAt !== null && tokens.length >= call.faults.stallAt;
}

function newGate(): Gate {
  let open = (): void => {};
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { opened, open };
}
