import { VirtualClock } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import { type GenerateEvent, SimEngine } from '../src/engine.ts';
import { Ledger } from '../src/ledger.ts';
import { Policy } from '../src/policy/policy.ts';
import { parseScenarios } from '../src/policy/scenario.ts';
import { WeightStore } from '../src/policy/weights.ts';
import { PrefixCache } from '../src/prefix-cache.ts';
import { type GenerateCall, NO_FAULTS } from '../src/run.ts';
import { bundledVocabulary } from '../src/vocabulary.ts';

const vocabulary = bundledVocabulary();
const scenarios = parseScenarios({ scenarios: [{ name: 'thinker', rules: [{ reply: [{ think: 20 }] }] }] }, 'test');
/**
 * Number of tokens of a reply: 20 words of thinking, the delimiters and newlines of the thinking block, and the token that ends the turn.
 */
const REPLY_TOKENS = 26;
const TOKEN_MS = 10;

function setup(
  options: { maxNumSeqs?: number; tokenDelayMs?: number; prefillTokenDelayMs?: number; speed?: number } = {},
) {
  const clock = new VirtualClock();
  const policy = new Policy(vocabulary, scenarios, 'append_only');
  const weights = new WeightStore(policy.scenarios, 'v0');
  const ledger = new Ledger({ limit: 100 });
  const engine = new SimEngine({
    vocabulary,
    policy,
    weights,
    ledger,
    clock,
    seed: 1,
    maxModelLen: 1000,
    maxNumSeqs: options.maxNumSeqs ?? 4,
    firstTokenDelayMs: 0,
    prefillTokenDelayMs: options.prefillTokenDelayMs ?? 0,
    speed: options.speed ?? 1,
    tokenDelayMs: options.tokenDelayMs ?? TOKEN_MS,
    cacheBlocks: 100,
  });
  return { clock, weights, ledger, engine };
}

function call(requestId: string, more: Partial<GenerateCall> = {}): GenerateCall {
  return {
    requestId,
    choice: 0,
    endpoint: '/test',
    promptForm: 'ids',
    sessionId: null,
    promptIds: vocabulary.encode('<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n'),
    params: {
      temperature: 1,
      topP: 1,
      topK: 0,
      minP: 0,
      repetitionPenalty: 1,
      presencePenalty: 0,
      frequencyPenalty: 0,
      maxTokens: 100,
      stop: [],
      stopTokenIds: [],
      ignoreEos: false,
      includeStop: false,
      skipSpecial: true,
      seed: 1,
      constraint: null,
    },
    topCount: 0,
    cacheSalt: '',
    eventTokens: null,
    signal: new AbortController().signal,
    faults: NO_FAULTS,
    ...more,
  };
}

/** Reads the events of one call of the simulated engine, and advances the virtual clock when the next event requires that. */
class Reader {
  readonly events: GenerateEvent[] = [];
  private readonly generator: AsyncGenerator<GenerateEvent, void, undefined>;
  private readonly clock: VirtualClock;

  constructor(engine: SimEngine, clock: VirtualClock, request: GenerateCall) {
    this.generator = engine.generate(request);
    this.clock = clock;
  }

  get tokens(): number {
    return this.events.reduce((sum, event) => sum + (event.kind === 'start' ? 0 : event.tokens.length), 0);
  }

  get finish(): Extract<GenerateEvent, { kind: 'finish' }> | undefined {
    const last = this.events.at(-1);
    return last?.kind === 'finish' ? last : undefined;
  }

  /** Advances virtual time by one token's delay and then reads one event. */
  async next(): Promise<void> {
    const step = this.generator.next();
    this.clock.advance(TOKEN_MS);
    const { value } = await step;
    if (value !== undefined) this.events.push(value);
  }

  /** Reads one event, which must be available without advancing virtual time. */
  async nextWithoutTime(): Promise<void> {
    const { value } = await this.generator.next();
    if (value !== undefined) this.events.push(value);
  }

  async toTokens(count: number): Promise<void> {
    while (this.tokens < count && this.finish === undefined) await this.next();
  }

  async leave(): Promise<void> {
    await this.generator.return();
  }

  /** Starts to read the next event without waiting for it. */
  pending(): Promise<void> {
    return this.nextWithoutTime();
  }
}

/** Yields to the event loop ten times, so that all pending work that needs no virtual time is done. */
async function settled(): Promise<void> {
  for (let i = 0; i < 10; i++) await new Promise((resolve) => setImmediate(resolve));
}

describe('the engine', () => {
  it('samples one token per delay and yields the ledger entry with the finish', async () => {
    const { engine, clock, ledger } = setup();
    const reader = new Reader(engine, clock, call('a'));
    await reader.toTokens(Number.POSITIVE_INFINITY);
    expect(reader.tokens).toBe(REPLY_TOKENS);
    expect(reader.finish).toMatchObject({ reason: 'stop', stop: null });
    expect(reader.finish?.entry).toEqual(ledger.entries()[0]);
    expect(clock.monotonicMs()).toBeGreaterThanOrEqual(REPLY_TOKENS * TOKEN_MS);
    expect(engine.running).toBe(0);
  });

  it('queues calls beyond the number of slots in order of arrival', async () => {
    const { engine, clock } = setup({ maxNumSeqs: 1 });
    const first = new Reader(engine, clock, call('a'));
    const second = new Reader(engine, clock, call('b'));
    await first.toTokens(3);
    const queued = second.pending();
    await settled();
    expect([engine.running, engine.waiting]).toEqual([1, 1]);
    expect(second.events).toEqual([]);
    await first.toTokens(Number.POSITIVE_INFINITY);
    await queued;
    expect(second.events[0]?.kind).toBe('start');
    expect([engine.running, engine.waiting]).toEqual([1, 0]);
    await second.toTokens(Number.POSITIVE_INFINITY);
    expect(engine.running).toBe(0);
  });

  it('ends an aborted call with the tokens so far, waiting or running', async () => {
    const { engine, clock, ledger } = setup({ maxNumSeqs: 1 });
    const runner = new Reader(engine, clock, call('a'));
    const waiter = new Reader(engine, clock, call('b'));
    await runner.toTokens(5);
    const queued = waiter.pending();
    await settled();
    expect(engine.abort(['b', 'unknown'])).toBe(1);
    await queued;
    expect(waiter.finish).toMatchObject({ reason: 'abort', entry: { response_ids: [], aborted_at: 0 } });
    expect(engine.abort()).toBe(1);
    await runner.nextWithoutTime();
    expect(runner.finish).toMatchObject({ reason: 'abort', entry: { aborted_at: 5 } });
    expect(runner.finish?.entry.response_ids.length).toBe(5);
    expect(ledger.total).toBe(2);
    expect(engine.running).toBe(0);
  });

  it('aborts a call and records the abort in the ledger when its reader leaves or its signal aborts', async () => {
    const { engine, clock, ledger } = setup();
    const leaver = new Reader(engine, clock, call('a'));
    await leaver.toTokens(4);
    await leaver.leave();
    const controller = new AbortController();
    const signalled = new Reader(engine, clock, call('b', { signal: controller.signal }));
    await signalled.toTokens(2);
    controller.abort();
    await signalled.nextWithoutTime();
    expect(ledger.entries().map((entry) => [entry.request_id, entry.finish_reason, entry.aborted_at])).toEqual([
      ['a', 'abort', 4],
      ['b', 'abort', 2],
    ]);
    expect(engine.running).toBe(0);
  });

  it('samples the later tokens of a running reply with updated weights', async () => {
    const { engine, clock, weights } = setup();
    const reader = new Reader(engine, clock, call('a'));
    await reader.toTokens(9);
    weights.update('v1');
    await reader.toTokens(Number.POSITIVE_INFINITY);
    expect(reader.finish?.entry.version_spans).toEqual([
      { version: 'v0', start: 0, end: 9 },
      { version: 'v1', start: 9, end: REPLY_TOKENS },
    ]);
  });

  it('freezes running calls during a pause with mode keep', async () => {
    const { engine, clock } = setup();
    const reader = new Reader(engine, clock, call('a'));
    await reader.toTokens(3);
    await engine.pause('keep');
    expect(engine.paused).toBe(true);
    const frozen = reader.pending();
    clock.advance(100 * TOKEN_MS);
    await settled();
    expect(reader.tokens).toBe(3);
    engine.resume();
    await frozen;
    expect(reader.tokens).toBe(4);
    await reader.toTokens(Number.POSITIVE_INFINITY);
    expect(reader.finish?.reason).toBe('stop');
  });

  it('aborts running calls and holds new ones during a pause with mode abort', async () => {
    const { engine, clock } = setup();
    const reader = new Reader(engine, clock, call('a'));
    await reader.toTokens(3);
    const paused = engine.pause('abort');
    await reader.nextWithoutTime();
    await paused;
    expect(reader.finish?.reason).toBe('abort');
    const late = new Reader(engine, clock, call('b'));
    await late.next();
    const held = late.pending();
    clock.advance(100 * TOKEN_MS);
    await settled();
    expect(late.tokens).toBe(0);
    engine.resume();
    await held;
    expect(late.tokens).toBe(1);
    await late.leave();
  });

  it('lets running calls finish in a pause with mode wait', async () => {
    const { engine, clock } = setup();
    const reader = new Reader(engine, clock, call('a'));
    await reader.toTokens(3);
    let done = false;
    const paused = engine.pause('wait').then(() => {
      done = true;
    });
    await settled();
    expect(done).toBe(false);
    await reader.toTokens(Number.POSITIVE_INFINITY);
    await paused;
    expect(reader.finish?.reason).toBe('stop');
    expect(engine.paused).toBe(true);
  });

  it('lets frozen calls finish when a pause with mode wait follows one with mode keep', async () => {
    const { engine, clock } = setup();
    const reader = new Reader(engine, clock, call('a'));
    await reader.toTokens(3);
    await engine.pause('keep');
    const paused = engine.pause('wait');
    await reader.toTokens(Number.POSITIVE_INFINITY);
    await paused;
    expect(reader.finish?.reason).toBe('stop');
  });

  it('yields to the event loop between bursts when tokens have no delay', async () => {
    const { engine, clock } = setup({ tokenDelayMs: 0 });
    const request = call('a', { eventTokens: 1 });
    const reader = new Reader(engine, clock, request);
    let turns = 0;
    let counting = true;
    const count = (): void => {
      turns++;
      if (counting) setImmediate(count);
    };
    setImmediate(count);
    while (reader.finish === undefined) await reader.nextWithoutTime();
    counting = false;
    expect(turns).toBeGreaterThan(REPLY_TOKENS / 2);
  });

  it('counts cached tokens in whole blocks per salt but never the whole prompt', () => {
    const { engine } = setup();
    const ids = Array.from({ length: 64 }, (_, i) => i);
    expect(engine.cache.admit(ids, '', 'v0').cachedTokens).toBe(0);
    expect(engine.cache.admit(ids, '', 'v0').cachedTokens).toBe(48);
    expect(engine.cache.admit([...ids, 1, 2], '', 'v0').cachedTokens).toBe(64);
    expect(engine.cache.admit(ids, 'other', 'v0').cachedTokens).toBe(0);
    expect(engine.cache.admit([9, ...ids], '', 'v0').cachedTokens).toBe(0);
    engine.cache.clear();
    expect(engine.cache.admit(ids, '', 'v0').cachedTokens).toBe(0);
  });

  it('knows which weights computed each token of a prompt', () => {
    const cache = new PrefixCache(100);
    const ids = Array.from({ length: 64 }, (_, i) => i);
    const first = cache.admit(ids.slice(0, 20), '', 'v0');
    expect(first.versionSpans).toEqual([{ version: 'v0', start: 0, end: 20 }]);
    first.extend(
      ids.slice(20, 50),
      ids.slice(20, 50).map((id) => (id < 30 ? 'v0' : 'v1')),
    );
    expect(cache.admit(ids, '', 'v2').versionSpans).toEqual([
      { version: 'v0', start: 0, end: 30 },
      { version: 'v1', start: 30, end: 48 },
      { version: 'v2', start: 48, end: 64 },
    ]);
  });

  it('counts no cached block after an evicted one', () => {
    const cache = new PrefixCache(3);
    const ids = Array.from({ length: 64 }, (_, i) => i);
    cache.admit(ids, '', 'v0');
    expect(cache.size).toBe(3);
    expect(cache.admit(ids, '', 'v0').cachedTokens).toBe(0);
  });
});
