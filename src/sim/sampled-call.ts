import { type Breakage, breakageOf, type CallHead, engineFaults } from './call-head.ts';
import type { SimContext } from './context.ts';
import type { GenerateEvent } from './engine.ts';
import type { Exchange } from './http.ts';
import type { PromptForm } from './ledger.ts';
import type { GenerateCall, SamplingParams } from './run.ts';
import { WireChoice } from './wire-choice.ts';

export type FinishEvent = Extract<GenerateEvent, { kind: 'finish' }>;

/** What all choices of one call have in common. */
export type CallShape = {
  readonly head: CallHead;
  /** Path of the route. */
  readonly endpoint: string;
  readonly promptForm: PromptForm;
  readonly stream: boolean;
  /** Tokens per streamed chunk, when the request says. */
  readonly streamInterval?: number | null | undefined;
  readonly cacheSalt?: string | null | undefined;
  /** Alternatives per token. */
  readonly topCount: number;
};

/** One reply of a call. */
export type SampledChoice = {
  readonly index: number;
  /** Index among the choices of its prompt. */
  readonly sample: number;
  readonly promptIds: readonly number[];
  readonly params: SamplingParams;
  readonly wire: WireChoice;
  /** Tokens so far. */
  sampled: number;
};

export type TokenUsage = { readonly prompt: number; readonly completion: number; readonly cached: number };

/** What every generation route does alike: samples its choices, counts, keeps the metrics up and breaks as faults demand. */
export class SampledCall {
  readonly head: CallHead;
  /** Unix time in seconds. */
  readonly created: number;
  private readonly exchange: Exchange;
  private readonly context: SimContext;
  private readonly shape: CallShape;
  private readonly breakage: Breakage | null;
  private readonly beganMs: number;
  private readonly choices: SampledChoice[] = [];
  private readonly cached = new Map<readonly number[], number>();

  constructor(exchange: Exchange, context: SimContext, shape: CallShape) {
    this.exchange = exchange;
    this.context = context;
    this.shape = shape;
    this.head = shape.head;
    this.breakage = breakageOf(shape.head.plan);
    this.created = Math.floor(context.clock.nowMs() / 1000);
    this.beganMs = context.clock.monotonicMs();
  }

  /** Adds a choice; nothing is sampled yet. Choices of one prompt must be given the same array. */
  newChoice(promptIds: readonly number[], params: SamplingParams, sample: number): SampledChoice {
    const { vocabulary, ledger, config } = this.context;
    const { plan, requestId } = this.head;
    const wire = new WireChoice({ plan, mode: config.logprobsMode, vocabulary, ledger, requestId });
    const choice = { index: this.choices.length, sample, promptIds, params, wire, sampled: 0 };
    this.choices.push(choice);
    return choice;
  }

  /** Samples one choice. */
  async *events(choice: SampledChoice): AsyncGenerator<GenerateEvent, void, undefined> {
    const { context, shape, head } = this;
    const least = context.config.streamInterval;
    const call: GenerateCall = {
      requestId: head.requestId,
      choice: choice.sample,
      endpoint: shape.endpoint,
      promptForm: shape.promptForm,
      sessionId: head.sessionId,
      promptIds: choice.promptIds,
      params: choice.params,
      topCount: shape.topCount,
      cacheSalt: shape.cacheSalt ?? '',
      eventTokens: shape.stream ? Math.max(least, shape.streamInterval ?? 1) : null,
      signal: this.exchange.signal,
      faults: engineFaults(head.plan),
    };
    for await (const event of context.engine.generate(call)) {
      if (event.kind === 'start') this.cached.set(choice.promptIds, event.cachedTokens);
      else {
        if (choice.sampled === 0 && event.tokens.length > 0) {
          context.metrics.firstTokenAfter(context.clock.monotonicMs() - this.beganMs);
        }
        choice.sampled += event.tokens.length;
      }
      yield event;
    }
  }

  /** Carries out a fault that breaks a stream at this length. True when it did; nothing may be sent after that. */
  breaksStream(choice: SampledChoice): boolean {
    if (this.breakage === null || choice.sampled < this.breakage.atTokens) return false;
    this.break();
    return true;
  }

  /** Sends a reply that is not streamed, or half of it when a fault says so. */
  sendJson(body: object): void {
    if (this.exchange.signal.aborted) this.context.metrics.clientGone();
    else if (this.breakage === null) this.exchange.json(200, body);
    else this.exchange.halfJson(body, () => this.break());
  }

  /** Ends a stream; `last` are its last events. */
  async endStream(...last: readonly unknown[]): Promise<void> {
    if (this.exchange.signal.aborted) return this.context.metrics.clientGone();
    for (const event of last) await this.exchange.event(event);
    this.exchange.end();
  }

  /** Over all choices so far. */
  usage(): TokenUsage {
    const prompts = [...new Set(this.choices.map(({ promptIds }) => promptIds))];
    return {
      prompt: prompts.reduce((sum, ids) => sum + ids.length, 0),
      completion: this.choices.reduce((sum, { wire, sampled }) => sum + wire.completionTokens(sampled), 0),
      cached: prompts.reduce((sum, ids) => sum + (this.cached.get(ids) ?? 0), 0),
    };
  }

  private break(): void {
    const downCalls = this.breakage?.downCalls ?? null;
    if (downCalls === null) this.exchange.reset();
    else {
      this.context.engine.cache.clear();
      this.exchange.dieServer(downCalls);
    }
  }
}
