import { FloeError } from '@floe-rl/core';
import type { SimContext } from '../context.ts';
import type { Exchange } from '../http.ts';
import { routedNpy } from '../routed-experts.ts';
import { type CallHead, type FinishEvent, SampledCall, type SampledChoice } from '../sampled-call.ts';
import { tokenName, type WireToken, wireLogprob } from '../wire-choice.ts';
import { applyEarlyVllmFault, boundedMaxTokens, checkModel, readCallHead } from './context.ts';
import { wireUsage } from './reply-fields.ts';
import {
  type CompletionRequest,
  completionRequestSchema,
  parseRequest,
  refuseUnsupported,
  samplingParams,
} from './request.ts';

const COMPLETIONS_PATH = '/v1/completions';

/** Maximum reply length in tokens when a completion request gives none. */
const DEFAULT_MAX_TOKENS = 16;

/** Handles `POST /v1/completions`. */
export async function completions(exchange: Exchange, context: SimContext): Promise<void> {
  const request = parseRequest(context, completionRequestSchema, await exchange.body(), 'completion request');
  const head = readCallHead(exchange, context, request);
  if (applyEarlyVllmFault(exchange, context, head, request.stream ?? false)) return;
  const call = new CompletionCall(exchange, context, request, head, completionPrompts(context, request));
  await (request.stream === true ? call.stream() : call.reply());
}

/**
 * Validates a completion request and returns its prompts as ids. Throws `engine_rejected` or `not_found` for a request that vLLM refuses.
 */
export function completionPrompts(context: SimContext, request: CompletionRequest): number[][] {
  checkModel(context, request.model);
  refuseUnsupported(request, 'completions');
  if (request.echo === true) throw new FloeError('engine_rejected', 'echo is not supported by the simulated engine');
  return promptLists(context, request.prompt);
}

/** Returns the maximum reply length in tokens for one prompt of a completion request. */
export function completionMaxTokens(
  context: SimContext,
  request: CompletionRequest,
  promptIds: readonly number[],
): number {
  const { maxModelLen } = context.engine.options;
  const remaining = Math.max(1, maxModelLen - promptIds.length);
  return boundedMaxTokens(maxModelLen, promptIds.length, request.max_tokens ?? Math.min(DEFAULT_MAX_TOKENS, remaining));
}

/** Returns the request's prompts as ids. Throws `engine_rejected` for an id outside the vocabulary. */
function promptLists(context: SimContext, prompt: CompletionRequest['prompt']): number[][] {
  const { vocabulary } = context;
  if (typeof prompt === 'string') return [vocabulary.encode(prompt)];
  const lists = (typeof prompt[0] === 'number' ? [prompt] : prompt) as (string | number[])[];
  return lists.map((list) => {
    if (typeof list === 'string') return vocabulary.encode(list);
    const unknown = list.find((id) => !vocabulary.has(id));
    if (unknown !== undefined) throw new FloeError('engine_rejected', `Token id ${unknown} is out of vocabulary`);
    return list;
  });
}

type ChoiceState = { readonly sampled: SampledChoice; textLength: number };

/** Samples the `n` choices of each prompt of one completion request concurrently and sends the reply. */
class CompletionCall {
  private readonly exchange: Exchange;
  private readonly context: SimContext;
  private readonly request: CompletionRequest;
  private readonly call: SampledCall;
  private readonly choices: ChoiceState[];

  constructor(
    exchange: Exchange,
    context: SimContext,
    request: CompletionRequest,
    head: CallHead,
    prompts: number[][],
  ) {
    this.exchange = exchange;
    this.context = context;
    this.request = request;
    this.call = new SampledCall(exchange, context, {
      head,
      endpoint: COMPLETIONS_PATH,
      promptForm: isText(request.prompt) ? 'text' : 'ids',
      stream: request.stream ?? false,
      streamInterval: request.stream_interval,
      cacheSalt: request.cache_salt,
      topCount: request.logprobs ?? 0,
    });
    const tasks = prompts.map((promptIds) => {
      const maxTokens = completionMaxTokens(context, request, promptIds);
      return { promptIds, params: samplingParams(request, context.config.generationConfig, maxTokens, null) };
    });
    this.choices = tasks.flatMap(({ promptIds, params }) =>
      Array.from({ length: request.n ?? 1 }, (_, sample) => ({
        sampled: this.call.addChoice(promptIds, params, sample),
        textLength: 0,
      })),
    );
  }

  async reply(): Promise<void> {
    const choices = await Promise.all(this.choices.map((choice) => this.wholeChoice(choice)));
    this.call.sendJson({ ...this.envelope(), choices, usage: wireUsage(this.call.usage()) });
  }

  async stream(): Promise<void> {
    this.exchange.beginStream();
    await Promise.all(this.choices.map((choice) => this.streamChoice(choice)));
    const usage = { ...this.envelope(), choices: [], usage: wireUsage(this.call.usage()) };
    await this.call.endStream(...(this.request.stream_options?.include_usage === true ? [usage] : []), '[DONE]');
  }

  private async wholeChoice(choice: ChoiceState): Promise<object> {
    const { sampled } = choice;
    const ids: number[] = [];
    const logprobs: WireToken[] = [];
    let hasIds = true;
    let text = '';
    let finish: FinishEvent | null = null;
    for await (const event of this.call.events(sampled)) {
      if (event.kind === 'start') continue;
      text += event.pieces.map((piece) => piece.text).join('');
      if (event.kind === 'finish') finish = event;
      const wire = sampled.wire.take(event.tokens);
      hasIds &&= wire.ids !== undefined;
      for (const id of wire.ids ?? []) ids.push(id);
      logprobs.push(...wire.logprobs);
    }
    const withIds = this.request.return_token_ids === true && hasIds;
    return {
      index: sampled.index,
      text,
      logprobs: this.logprobsObject(choice, logprobs),
      ...this.finishFields(finish),
      ...(withIds ? { token_ids: ids, prompt_token_ids: sampled.wire.promptIds(sampled.promptIds) } : {}),
      prompt_logprobs: null,
    };
  }

  private async streamChoice(choice: ChoiceState): Promise<void> {
    const { sampled } = choice;
    let first = true;
    for await (const event of this.call.events(sampled)) {
      if (event.kind === 'start') continue;
      const text = event.pieces.map((piece) => piece.text).join('');
      const wire = sampled.wire.take(event.tokens);
      const withIds = this.request.return_token_ids === true && wire.ids !== undefined;
      await this.chunk({
        index: sampled.index,
        text,
        logprobs: this.logprobsObject(choice, wire.logprobs),
        ...(event.kind === 'finish' ? this.finishFields(event) : { finish_reason: null, stop_reason: null }),
        ...(withIds ? { token_ids: wire.ids } : {}),
        ...(withIds && first ? { prompt_token_ids: sampled.wire.promptIds(sampled.promptIds) } : {}),
      });
      first = false;
      if (this.call.breakStreamIfDue(sampled)) return;
    }
  }

  private async chunk(choice: object): Promise<void> {
    await this.exchange.event({ ...this.envelope(), choices: [choice] });
  }

  private finishFields(finish: FinishEvent | null): object {
    const { reportVersions, routedExperts } = this.context.config;
    return {
      finish_reason: finish?.reason ?? 'abort',
      stop_reason: finish?.stop ?? null,
      ...(reportVersions === 'all' ? { weight_versions: finish?.spans ?? [] } : {}),
      ...(routedExperts && finish !== null
        ? { routed_experts: routedNpy(finish.entry, this.request.routed_experts_prompt_start ?? 0) }
        : {}),
    };
  }

  /** Returns logprobs as the parallel lists of OpenAI's legacy completions API; `null` when the request does not demand logprobs. */
  private logprobsObject(choice: ChoiceState, wire: readonly WireToken[]): object | null {
    if (this.request.logprobs === undefined || this.request.logprobs === null) return null;
    const { vocabulary, config } = this.context;
    const asId = this.request.return_tokens_as_token_ids ?? false;
    const names = wire.map(({ id }) => tokenName(vocabulary, id, asId));
    const offsets = names.map((name) => {
      const offset = choice.textLength;
      choice.textLength += name.length;
      return offset;
    });
    return {
      tokens: names,
      token_logprobs: wire.map(({ logprob }) => logprob),
      top_logprobs: wire.map(({ top }) =>
        Object.fromEntries(
          top.map((other) => [tokenName(vocabulary, other.id, asId), wireLogprob(other, config.logprobsMode)]),
        ),
      ),
      text_offset: offsets,
    };
  }

  private envelope(): object {
    const { head, created } = this.call;
    return { id: `cmpl-${head.requestId}`, object: 'text_completion', created, model: this.context.servedModel.name };
  }
}

function isText(prompt: CompletionRequest['prompt']): boolean {
  return typeof prompt === 'string' || typeof prompt[0] === 'string';
}
