import type { Exchange } from '../http.ts';
import { routedRows } from '../routed-experts.ts';
import type { Alternative } from '../run.ts';
import { type CallOptions, type FinishEvent, SampledCall, type SampledChoice } from '../sampled-call.ts';
import type { SamplingParams } from '../sampler.ts';
import { type WireLogprob, type WireToken, wireLogprob } from '../wire-choice.ts';
import type { SglangState } from './state.ts';

/**
 * A logprob entry `[logprob, id, text]`. Its id is `null` only under an injected fault. Its text is `null` unless the request demands text.
 */
export type LogprobTuple = readonly [logprob: WireLogprob, id: number | null, text: string | null];

/** The data of one sampling step of a reply. */
export type ReplyStep = {
  /** Token ids as they are sent; `undefined` when an injected fault leaves them out. */
  readonly ids: readonly number[] | undefined;
  readonly wire: readonly WireToken[];
  readonly text: string;
  /** How the reply ended; `null` in every step except the last. */
  readonly finish: FinishEvent | null;
};

/** Options that determine the content of `meta_info`. */
type MetaInfoOptions = {
  /** Logprobs to be listed, of all tokens so far or of one chunk; `null` when the request demands none. */
  readonly logprobs: readonly WireToken[] | null;
  /** Number of logprobs in the reply so far. */
  readonly logprobCount: number;
  /** Whether logprob tuples contain the token's text. */
  readonly withText: boolean;
  readonly topCount: number;
  /** Logprob tuples of prompt tokens that the reply reports. */
  readonly inputLogprobs: readonly LogprobTuple[];
  readonly finish: FinishEvent | null;
  /** First token position whose routed experts are reported; `null` when the request does not demand them. */
  readonly routedFrom: number | null;
};

/** Samples one reply for an SGLang route and derives the fields that all routes have in common. */
export class SglangReply {
  readonly call: SampledCall;
  readonly choice: SampledChoice;
  private readonly state: SglangState;
  private readonly beganMs: number;
  private readonly retractedBefore: number;
  private cachedTokens = 0;
  private reasoning: { tokens: number; open: boolean } | null;

  constructor(
    exchange: Exchange,
    state: SglangState,
    options: CallOptions,
    task: { readonly promptIds: readonly number[]; readonly params: SamplingParams },
  ) {
    const { context } = state;
    this.state = state;
    this.call = new SampledCall(exchange, context, options);
    this.choice = this.call.addChoice(task.promptIds, task.params, 0);
    this.beganMs = context.clock.monotonicMs();
    this.retractedBefore = state.retractions;
    this.reasoning = context.mode === 'open_think' ? { tokens: 0, open: true } : null;
  }

  get rid(): string {
    return this.call.head.requestId;
  }

  /** Prompt ids as they are sent; `undefined` when an injected fault leaves them out. */
  get promptIds(): readonly number[] | undefined {
    return this.choice.wire.promptIds(this.choice.promptIds);
  }

  /** Samples the reply, yields its steps and updates the metrics. */
  async *steps(): AsyncGenerator<ReplyStep, void, undefined> {
    const { choice } = this;
    const { metrics, context } = this.state;
    for await (const event of this.call.events(choice)) {
      if (event.kind === 'start') {
        this.cachedTokens = event.cachedTokens;
        metrics.countPrompt(choice.promptIds.length, event.cachedTokens);
        continue;
      }
      if (choice.sampled === event.tokens.length && event.tokens.length > 0) {
        metrics.observeFirstToken(context.clock.monotonicMs() - this.beganMs);
      }
      metrics.countTokens(event.tokens.length);
      for (const { id } of event.tokens) this.countReasoning(id);
      const finish = event.kind === 'finish' ? event : null;
      if (finish !== null) metrics.countFinish(finish.reason === 'abort');
      const { ids, logprobs } = choice.wire.take(event.tokens);
      const text = event.pieces.map((piece) => piece.text).join('') + this.endText(finish);
      yield { ids, wire: logprobs, text, finish };
    }
  }

  /** Returns the `finish_reason` object; `null` while the reply continues. */
  finishReason(finish: FinishEvent | null): Record<string, unknown> | null {
    if (finish === null) return null;
    const { response_ids: ids } = finish.entry;
    if (finish.reason === 'stop') return { type: 'stop', matched: finish.stop ?? ids.at(-1) ?? null };
    if (finish.reason === 'length') return { type: 'length', length: ids.length };
    return { type: 'abort', message: 'The request was aborted.', status_code: null, err_type: null };
  }

  /** Returns the `meta_info` object of a reply. */
  metaInfo(options: MetaInfoOptions): Record<string, unknown> {
    const { finish, logprobs } = options;
    return {
      id: this.rid,
      finish_reason: this.finishReason(finish),
      prompt_tokens: this.choice.promptIds.length,
      ...this.versions(finish),
      num_retractions: this.state.retractions - this.retractedBefore,
      ...(this.reasoning === null ? {} : { reasoning_tokens: this.reasoning.tokens }),
      ...(logprobs === null ? {} : this.logprobFields(logprobs, options)),
      completion_tokens: this.choice.wire.completionTokens(this.choice.sampled),
      cached_tokens: this.cachedTokens,
      ...(finish === null ? {} : { e2e_latency: (this.state.context.clock.monotonicMs() - this.beganMs) / 1000 }),
      ...(finish === null || options.routedFrom === null ? {} : this.routed(finish, options.routedFrom)),
    };
  }

  /** Returns the fields with a reply's policy versions. The OpenAI routes return them as `metadata`, and `/generate` inside `meta_info`. */
  versions(finish: FinishEvent | null): object {
    const { weights, config } = this.state.context;
    const version = finish?.spans.at(-1)?.version ?? weights.reportedVersion;
    return {
      weight_version: version,
      ...(config.reportVersions !== 'none' && finish !== null ? { weight_versions: finish.spans } : {}),
    };
  }

  /** Returns the usage object of the OpenAI routes. */
  usage(): object {
    const { prompt, completion, cached } = this.call.usage();
    return {
      prompt_tokens: prompt,
      total_tokens: prompt + completion,
      completion_tokens: completion,
      prompt_tokens_details: { cached_tokens: cached },
      reasoning_tokens: this.reasoning?.tokens ?? 0,
    };
  }

  /**
   * Returns the model name for a reply. SGLang accepts any name and sends back the name in the request, unless a fault changed the model.
   */
  modelName(requested: string | null | undefined): string {
    const { servedModel, config } = this.state.context;
    return servedModel.name === config.model ? (requested ?? 'default') : servedModel.name;
  }

  /**
   * Returns the routed experts as base64 of int32 expert indexes, ordered by token, then by layer, then by rank within the layer. The field
   * is left out when the server does not record experts.
   */
  routed(finish: FinishEvent, start: number): { readonly routed_experts?: string } {
    if (!this.state.context.config.routedExperts) return {};
    const { values } = routedRows(finish.entry, start);
    const data = Buffer.alloc(4 * values.length);
    values.forEach((value, index) => {
      data.writeInt32LE(value, 4 * index);
    });
    return { routed_experts: data.toString('base64') };
  }

  /** Returns the text of the token that ended the turn. It is empty unless the request sets `no_stop_trim` and keeps special tokens. */
  private endText(finish: FinishEvent | null): string {
    const { includeStop, skipSpecial } = this.choice.params;
    const last = finish?.entry.response_ids.at(-1);
    if (finish?.reason !== 'stop' || finish.stop !== null || last === undefined || !includeStop || skipSpecial)
      return '';
    return this.state.context.vocabulary.decode([last]);
  }

  private countReasoning(id: number): void {
    const { thinkOpen, thinkClose } = this.state.context.vocabulary.special;
    if (this.reasoning === null && id === thinkOpen) this.reasoning = { tokens: 0, open: true };
    if (this.reasoning?.open !== true) return;
    this.reasoning.tokens++;
    if (id === thinkClose) this.reasoning.open = false;
  }

  private logprobFields(logprobs: readonly WireToken[], options: MetaInfoOptions): object {
    const hasIds = this.choice.wire.promptIds(this.choice.promptIds) !== undefined;
    const tuple = (id: number, logprob: WireLogprob): LogprobTuple => [
      logprob,
      hasIds ? id : null,
      options.withText ? this.state.context.vocabulary.decode([id]) : null,
    ];
    const mode = this.state.context.config.logprobsMode;
    const alternatives = (top: readonly Alternative[]): LogprobTuple[] =>
      top.map((other) => tuple(other.id, wireLogprob(other, mode)));
    return {
      input_token_logprobs: options.inputLogprobs,
      output_token_logprobs: logprobs.map(({ id, logprob }) => tuple(id, logprob)),
      output_token_logprobs_length: options.logprobCount,
      ...(options.topCount > 0
        ? {
            input_top_logprobs: options.inputLogprobs.map(() => null),
            output_top_logprobs: logprobs.map(({ top }) => alternatives(top)),
          }
        : {}),
    };
  }
}
