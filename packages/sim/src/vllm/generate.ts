import { FloeError } from '@floe-rl/core';
import type { SimContext } from '../context.ts';
import type { Exchange } from '../http.ts';
import { generateConstraint } from '../requested-constraint.ts';
import { routedNpy, routedObject } from '../routed-experts.ts';
import { type CallHead, type FinishEvent, SampledCall, type SampledChoice } from '../sampled-call.ts';
import { chatLogprobs, type WireToken } from '../wire-choice.ts';
import { applyEarlyVllmFault, checkModel, readCallHead } from './context.ts';
import { generateLogprobs, wireUsage } from './reply-fields.ts';
import {
  type GenerateRequest,
  generateRequestSchema,
  parseRequest,
  refusePriority,
  refuseUnknown,
  refuseUnsupported,
  samplingParams,
} from './request.ts';

export const GENERATE_PATH = '/inference/v1/generate';

/** Handles `POST /inference/v1/generate`, which takes token ids as the prompt and replies with token ids. */
export async function generateTokens(exchange: Exchange, context: SimContext): Promise<void> {
  const request = parseRequest(context, generateRequestSchema, await exchange.body(), 'generate request');
  if (context.config.strict) {
    refuseUnknown(generateRequestSchema.shape.sampling_params.shape, request.sampling_params);
  }
  const head = readCallHead(exchange, context, request);
  if (applyEarlyVllmFault(exchange, context, head, request.stream ?? false)) return;
  validate(context, request);
  const call = new GenerateTokensCall(exchange, context, request, head);
  await (request.stream === true ? call.stream() : call.reply());
}

/** Checks a request to `/inference/v1/generate`. Throws `engine_rejected` or `not_found` for a request that vLLM refuses. */
function validate(context: SimContext, request: GenerateRequest): void {
  checkModel(context, request.model);
  refusePriority(request.priority);
  refuseUnsupported(request.sampling_params, 'chat');
  if (request.output_mode !== 'tokens' && request.sampling_params.detokenize === false) {
    throw new FloeError('engine_rejected', "output_mode='text' requires sampling_params.detokenize to be true");
  }
  const unknown = request.token_ids.find((id) => !context.vocabulary.has(id));
  if (unknown !== undefined) throw new FloeError('engine_rejected', `Token id ${unknown} is out of vocabulary`);
  const { maxModelLen } = context.engine.options;
  if (request.token_ids.length >= maxModelLen) {
    throw new FloeError(
      'engine_rejected',
      `The decoder prompt (length ${request.token_ids.length}) is longer than the maximum model length of ${maxModelLen}. Make sure that \`max_model_len\` is no smaller than the number of text tokens.`,
    );
  }
}

/** Samples the `n` choices of one prompt concurrently and sends the reply. */
class GenerateTokensCall {
  private readonly exchange: Exchange;
  private readonly context: SimContext;
  private readonly request: GenerateRequest;
  private readonly call: SampledCall;
  private readonly choices: readonly SampledChoice[];

  constructor(exchange: Exchange, context: SimContext, request: GenerateRequest, head: CallHead) {
    this.exchange = exchange;
    this.context = context;
    this.request = request;
    const { token_ids: promptIds, sampling_params: sampling } = request;
    this.call = new SampledCall(exchange, context, {
      head,
      endpoint: GENERATE_PATH,
      promptForm: 'ids',
      stream: request.stream ?? false,
      streamInterval: sampling.stream_interval,
      cacheSalt: request.cache_salt,
      topCount: sampling.logprobs ?? 0,
    });
    const { maxModelLen, policy } = context.engine.options;
    const remaining = maxModelLen - promptIds.length;
    const constraint = generateConstraint(sampling.structured_outputs, policy, promptIds);
    // Unlike on the chat route, a `max_tokens` that exceeds the context length is not an error. The reply ends at the context length.
    const maxTokens = Math.min(sampling.max_tokens ?? remaining, remaining);
    const defaults = context.config.generationConfig;
    // Stop strings are ignored when the request turns off detokenizing, because there is no text in which they could occur.
    const stop = sampling.detokenize === false ? [] : sampling.stop;
    const params = samplingParams({ ...sampling, stop }, defaults, maxTokens, constraint);
    this.choices = Array.from({ length: sampling.n ?? 1 }, (_, index) => this.call.addChoice(promptIds, params, index));
  }

  async reply(): Promise<void> {
    const choices = await Promise.all(this.choices.map((choice) => this.wholeChoice(choice)));
    this.call.sendJson({
      request_id: this.requestId,
      model: this.context.servedModel.name,
      created: this.call.created,
      output_mode: this.request.output_mode,
      choices,
      usage: wireUsage(this.call.usage()),
      prompt_logprobs: null,
      prompt_token_id_logprobs: null,
      prompt_token_ids: null,
      mm_placeholders: null,
      ...this.promptFields(),
      metrics: null,
      kv_transfer_params: null,
      ec_transfer_params: null,
    });
  }

  async stream(): Promise<void> {
    this.exchange.beginStream();
    await Promise.all(this.choices.map((choice) => this.streamChoice(choice)));
    const usage = { ...this.chunkHead, choices: [], usage: wireUsage(this.call.usage()) };
    await this.call.endStream(...(this.request.stream_options?.include_usage === true ? [usage] : []), '[DONE]');
  }

  private async wholeChoice(choice: SampledChoice): Promise<object> {
    const ids: number[] = [];
    const logprobs: WireToken[] = [];
    let hasIds = true;
    let text = '';
    let finish: FinishEvent | null = null;
    for await (const event of this.call.events(choice)) {
      if (event.kind === 'start') continue;
      text += event.pieces.map((piece) => piece.text).join('');
      const wire = choice.wire.take(event.tokens);
      hasIds &&= wire.ids !== undefined;
      for (const id of wire.ids ?? []) ids.push(id);
      logprobs.push(...wire.logprobs);
      if (event.kind === 'finish') finish = event;
    }
    return this.choiceFields(choice, { ids: hasIds ? ids : null, logprobs, text, finish });
  }

  /** Streams one choice. In output mode `tokens`, an event without ids is sent only when it has the finish reason. */
  private async streamChoice(choice: SampledChoice): Promise<void> {
    let first = true;
    for await (const event of this.call.events(choice)) {
      if (event.kind === 'start') continue;
      const finish = event.kind === 'finish' ? event : null;
      const text = event.pieces.map((piece) => piece.text).join('');
      const hasNoText = this.request.output_mode === 'tokens' || text === '';
      if (event.tokens.length === 0 && finish === null && hasNoText) continue;
      const wire = choice.wire.take(event.tokens);
      const lost = choice.wire.losesIds(text === '', finish !== null);
      const ids = lost ? null : (wire.ids ?? null);
      await this.exchange.event({
        ...this.chunkHead,
        choices: [this.choiceFields(choice, { ids, logprobs: lost ? null : wire.logprobs, text, finish })],
        ...(first ? this.promptFields() : {}),
      });
      first = false;
      if (this.call.breakStreamIfDue(choice)) return;
    }
  }

  private choiceFields(
    choice: SampledChoice,
    part: {
      readonly ids: readonly number[] | null;
      readonly logprobs: readonly WireToken[] | null;
      readonly text: string;
      readonly finish: FinishEvent | null;
    },
  ): object {
    const { config } = this.context;
    const { finish } = part;
    return {
      index: choice.index,
      token_ids: part.ids,
      logprobs: part.logprobs === null ? null : this.logprobs(part.logprobs),
      ...(this.request.output_mode === 'text' ? { text: part.text } : {}),
      finish_reason: finish?.reason ?? null,
      ...(config.generateStopReason ? { stop_reason: finish?.stop ?? null } : {}),
      routed_experts: config.routedExperts && finish !== null ? this.routedExperts(finish) : null,
      sampling_mask: null,
      weight_versions: config.reportVersions !== 'none' && finish !== null ? finish.spans : null,
    };
  }

  private logprobs(wire: readonly WireToken[]): object | null {
    const count = this.request.sampling_params.logprobs;
    if (count === undefined || count === null) return null;
    const { vocabulary, config } = this.context;
    const mode = config.logprobsMode;
    const content =
      this.request.output_mode === 'text'
        ? chatLogprobs(wire, { vocabulary, mode, asId: false })
        : generateLogprobs(wire, { shape: config.generateLogprobs, mode, count });
    return { content };
  }

  private routedExperts({ entry }: FinishEvent): unknown {
    const start = this.request.sampling_params.routed_experts_prompt_start ?? 0;
    return this.context.config.routedExpertsForm === 'npy' ? routedNpy(entry, start) : routedObject(entry, start);
  }

  private promptFields(): object {
    if (this.request.return_token_ids !== true) return {};
    return { prompt_token_ids: this.choices[0]?.wire.promptIds(this.request.token_ids) };
  }

  private get chunkHead(): object {
    return { request_id: this.requestId, output_mode: this.request.output_mode };
  }

  private get requestId(): string {
    return `generate-tokens-${this.call.head.requestId}`;
  }
}
