import type { Exchange } from '../http.ts';
import { routedRows } from '../routed-experts.ts';
import type { Alternative, SamplingParams } from '../run.ts';
import { type CallShape, type FinishEvent, SampledCall, type SampledChoice } from '../sampled-call.ts';
import { type WireLogprob, type WireToken, wireLogprob } from '../wire-choice.ts';
import type { SglangState } from './state.ts';

/** `[logprob, id, text]`; the id is null only by a fault, the text unless it was asked for. */
export type LogprobTuple = readonly [logprob: WireLogprob, id: number | null, text: string | null];

/** One event of a reply. */
export type ReplyStep = {
  /** As told; undefined: the fault says to leave them out. */
  readonly ids: readonly number[] | undefined;
  readonly wire: readonly WireToken[];
  readonly text: string;
  readonly finish: FinishEvent | null;
};

/** What `meta_info` is to hold beyond what it always does. */
export type MetaInfoOptions = {
  /** Logprobs to be listed, of tokens so far or of one chunk; null: none were asked for. */
  readonly logprobs: readonly WireToken[] | null;
  /** How many logprobs there are so far. */
  readonly logprobCount: number;
  readonly withText: boolean;
  readonly topCount: number;
  /** Tuples of the prompt. */
  readonly inputLogprobs: readonly LogprobTuple[];
  readonly finish: FinishEvent | null;
  /** First position that routed experts are told of; null: they were not asked for. */
  readonly routedFrom: number | null;
};

/** One reply being sampled for an SGLang route, and what the server knows of it. */
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
    shape: CallShape,
    task: { readonly promptIds: readonly number[]; readonly params: SamplingParams },
  ) {
    const { context } = state;
    this.state = state;
    this.call = new SampledCall(exchange, context, shape);
    this.choice = this.call.newChoice(task.promptIds, task.params, 0);
    this.beganMs = context.clock.monotonicMs();
    this.retractedBefore = state.retractions;
    this.reasoning = context.mode === 'open_think' ? { tokens: 0, open: true } : null;
  }

  get rid(): string {
    return this.call.head.requestId;
  }

  /** Ids of the prompt as told; undefined: the fault says to leave them out. */
  get promptIds(): readonly number[] | undefined {
    return this.choice.wire.promptIds(this.choice.promptIds);
  }

  async *steps(): AsyncGenerator<ReplyStep, void, undefined> {
    const { choice } = this;
    const { metrics, context } = this.state;
    for await (const event of this.call.events(choice)) {
      if (event.kind === 'start') {
        this.cachedTokens = event.cachedTokens;
        metrics.started(choice.promptIds.length, event.cachedTokens);
        continue;
      }
      if (choice.sampled === event.tokens.length && event.tokens.length > 0) {
        metrics.firstTokenAfter(context.clock.monotonicMs() - this.beganMs);
      }
      metrics.sampled(event.tokens.length);
      for (const { id } of event.tokens) this.countReasoning(id);
      const finish = event.kind === 'finish' ? event : null;
      if (finish !== null) metrics.finished(finish.reason === 'abort');
      const { ids, logprobs } = choice.wire.take(event.tokens);
      const text = event.pieces.map((piece) => piece.text).join('') + this.endText(finish);
      yield { ids, wire: logprobs, text, finish };
    }
  }

  /** Null while the reply goes on. */
  finishReason(finish: FinishEvent | null): Record<string, unknown> | null {
    if (finish === null) return null;
    const { response_ids: ids } = finish.entry;
    if (finish.reason === 'stop') return { type: 'stop', matched: finish.stop ?? ids.at(-1) ?? null };
    if (finish.reason === 'length') return { type: 'length', length: ids.length };
    return { type: 'abort', message: 'The request was aborted.', status_code: null, err_type: null };
  }

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

  /** `metadata` of the OpenAI routes, and a part of `meta_info`. */
  versions(finish: FinishEvent | null): object {
    const { weights, config } = this.state.context;
    const version = finish?.spans.at(-1)?.version ?? weights.announced;
    return {
      weight_version: version,
      ...(config.reportVersions !== 'none' && finish !== null ? { weight_versions: finish.spans } : {}),
    };
  }

  usage(): object {
    const { prompt, completion, cached } = this.call.usage();
    const { reportCachedTokens } = this.state.context.config;
    return {
      prompt_tokens: prompt,
      total_tokens: prompt + completion,
      completion_tokens: completion,
      prompt_tokens_details: reportCachedTokens ? { cached_tokens: cached } : null,
      reasoning_tokens: this.reasoning?.tokens ?? 0,
    };
  }

  /** The name in replies: the one that the request used, since a server answers to any, unless a fault says otherwise. */
  modelName(asked: string | null | undefined): string {
    const { identity, config } = this.state.context;
    return identity.model === config.model ? (asked ?? 'default') : identity.model;
  }

  /** Base64 of int32 numbers, token by layer by rank, without a header. Nothing where the server does not record experts. */
  routed(finish: FinishEvent, start: number): { readonly routed_experts?: string } {
    if (!this.state.context.config.routedExperts) return {};
    const { values } = routedRows(finish.entry, start);
    const data = Buffer.alloc(4 * values.length);
    values.forEach((value, index) => {
      data.writeInt32LE(value, 4 * index);
    });
    return { routed_experts: data.toString('base64') };
  }

  /** The end of turn has a text only when it is neither trimmed nor skipped. */
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
    const told = this.choice.wire.promptIds(this.choice.promptIds) !== undefined;
    const tuple = (id: number, logprob: WireLogprob): LogprobTuple => [
      logprob,
      told ? id : null,
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
