import { randomUUID } from 'node:crypto';
import type { SimContext } from './context.ts';
import type { GenerateEvent } from './engine.ts';
import { type ConnectionBreak, connectionBreak, engineFaults } from './fault-effects.ts';
import type { FaultPlan } from './faults.ts';
import type { Exchange } from './http.ts';
import type { PromptForm } from './ledger.ts';
import type { GenerateCall } from './run.ts';
import type { SamplingParams } from './sampler.ts';
import { WireChoice } from './wire-choice.ts';

/** The facts about a generation call that are known before its body is validated. */
export type CallHead = {
  /** Request id without a prefix such as `chatcmpl-`. */
  readonly requestId: string;
  /** Session id that the caller sent; `null` when it sent none. */
  readonly sessionId: string | null;
  readonly plan: FaultPlan;
};

/**
 * Counts one generation call for the fault injector, and returns the call's ids and the faults that hit it. Creates a request id when
 * `requestId` is `null`.
 */
export function newCallHead(context: SimContext, requestId: string | null, sessionId: string | null): CallHead {
  const plan = context.faults.plan(sessionId);
  if (plan.has('model_changed')) context.servedModel.rename();
  return { requestId: requestId ?? randomUUID().replaceAll('-', ''), sessionId, plan };
}

export type FinishEvent = Extract<GenerateEvent, { kind: 'finish' }>;

/** The properties that all choices of one call have in common. */
export type CallOptions = {
  readonly head: CallHead;
  /** Path of the route that the client called. */
  readonly endpoint: string;
  readonly promptForm: PromptForm;
  readonly stream: boolean;
  /** Number of tokens per streamed chunk that the request demands; `null` when it demands none. */
  readonly streamInterval?: number | null | undefined;
  readonly cacheSalt?: string | null | undefined;
  /** Maximum number of alternative tokens that are reported per position (vLLM's top logprobs). */
  readonly topCount: number;
};

/** One reply of a call, with the state of its sampling. */
export type SampledChoice = {
  readonly index: number;
  /** Index of this reply among the choices of the same prompt. */
  readonly sample: number;
  readonly promptIds: readonly number[];
  readonly params: SamplingParams;
  readonly wire: WireChoice;
  /** Number of tokens sampled so far. */
  sampled: number;
};

/** Token counts of one call, summed over all its choices. */
export type TokenUsage = { readonly prompt: number; readonly completion: number; readonly cached: number };

/**
 * The part of a call that all generation routes share. It samples the call's choices, counts tokens, updates metrics and applies faults.
 */
export class SampledCall {
  readonly head: CallHead;
  /** Unix time in seconds at which the call began. */
  readonly created: number;
  private readonly exchange: Exchange;
  private readonly context: SimContext;
  private readonly options: CallOptions;
  private readonly connectionBreak: ConnectionBreak | null;
  private readonly beganMs: number;
  private readonly choices: SampledChoice[] = [];
  private readonly cachedTokens = new Map<readonly number[], number>();

  constructor(exchange: Exchange, context: SimContext, options: CallOptions) {
    this.exchange = exchange;
    this.context = context;
    this.options = options;
    this.head = options.head;
    this.connectionBreak = connectionBreak(options.head.plan);
    this.created = Math.floor(context.clock.nowMs() / 1000);
    this.beganMs = context.clock.monotonicMs();
  }

  /**
   * Adds a choice, which {@link events} samples later. All choices of one prompt must be given the same `promptIds` array, so that the
   * usage counts the prompt once.
   */
  addChoice(promptIds: readonly number[], params: SamplingParams, sample: number): SampledChoice {
    const { vocabulary, ledger, config } = this.context;
    const { plan, requestId } = this.head;
    const wire = new WireChoice({ plan, mode: config.logprobsMode, vocabulary, ledger, requestId });
    const choice = { index: this.choices.length, sample, promptIds, params, wire, sampled: 0 };
    this.choices.push(choice);
    return choice;
  }

  /** Samples one choice. Yields the engine's events, counts its tokens and updates the metrics. */
  async *events(choice: SampledChoice): AsyncGenerator<GenerateEvent, void, undefined> {
    const { context, options, head } = this;
    const minInterval = context.config.streamInterval;
    const call: GenerateCall = {
      requestId: head.requestId,
      choice: choice.sample,
      endpoint: options.endpoint,
      promptForm: options.promptForm,
      sessionId: head.sessionId,
      promptIds: choice.promptIds,
      params: choice.params,
      topCount: options.topCount,
      cacheSalt: options.cacheSalt ?? '',
      eventTokens: options.stream ? Math.max(minInterval, options.streamInterval ?? 1) : null,
      signal: this.exchange.signal,
      faults: engineFaults(head.plan),
    };
    for await (const event of context.engine.generate(call)) {
      if (event.kind === 'start') this.cachedTokens.set(choice.promptIds, event.cachedTokens);
      else {
        if (choice.sampled === 0 && event.tokens.length > 0) {
          context.metrics.observeFirstToken(context.clock.monotonicMs() - this.beganMs);
        }
        choice.sampled += event.tokens.length;
      }
      yield event;
    }
  }

  /**
   * Resets the connection when an injected fault demands this at the choice's current length. Returns `true` when it did so; the caller
   * must then send nothing more.
   */
  breakStreamIfDue(choice: SampledChoice): boolean {
    if (this.connectionBreak === null || choice.sampled < this.connectionBreak.atTokens) return false;
    this.breakConnection();
    return true;
  }

  /**
   * Sends a reply that is not streamed. When an injected fault demands a reset, it sends half of the reply and then resets the connection.
   */
  sendJson(body: object): void {
    if (this.exchange.signal.aborted) this.context.metrics.countDisconnect();
    else if (this.connectionBreak === null) this.exchange.json(200, body);
    else this.exchange.sendHalfJson(body, () => this.breakConnection());
  }

  /** Sends `lastEvents` and ends the stream. */
  async endStream(...lastEvents: readonly unknown[]): Promise<void> {
    if (this.exchange.signal.aborted) return this.context.metrics.countDisconnect();
    for (const event of lastEvents) await this.exchange.event(event);
    this.exchange.end();
  }

  /** Returns the token counts over all choices so far. A prompt with several choices counts once. */
  usage(): TokenUsage {
    const prompts = [...new Set(this.choices.map(({ promptIds }) => promptIds))];
    return {
      prompt: prompts.reduce((sum, ids) => sum + ids.length, 0),
      completion: this.choices.reduce((sum, { wire, sampled }) => sum + wire.completionTokens(sampled), 0),
      cached: prompts.reduce((sum, ids) => sum + (this.cachedTokens.get(ids) ?? 0), 0),
    };
  }

  private breakConnection(): void {
    const downCalls = this.connectionBreak?.downCalls ?? null;
    if (downCalls === null) this.exchange.reset();
    else {
      this.context.engine.cache.clear();
      this.exchange.crashServer(downCalls);
    }
  }
}
