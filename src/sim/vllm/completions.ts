import { FloeError } from '../../core/errors.ts';
import { parseAs } from '../../core/parse.ts';
import { type CallHead, callHead, engineFaults, resetAt } from '../call-head.ts';
import type { GenerateEvent } from '../engine.ts';
import type { Exchange } from '../http.ts';
import type { GenerateCall, SampledToken } from '../run.ts';
import { WireChoice, type WireToken, wireLogprob } from '../wire-choice.ts';
import { failAsVllm } from './call.ts';
import { boundedMaxTokens, checkModel, type VllmContext } from './context.ts';
import { type CompletionRequest, completionRequestSchema, refuseUnsupported, samplingParams } from './request.ts';
import { tokenName } from './wire.ts';

/** vLLM's bound for a completion that asks for none. */
const DEFAULT_MAX_TOKENS = 16;

/** POST /v1/completions */
export async function completions(exchange: Exchange, context: VllmContext): Promise<void> {
  const request = parseAs(completionRequestSchema, await exchange.body(), 'completion request');
  const head = callHead(exchange, context, request);
  if (failAsVllm(exchange, context, head, request.stream ?? false)) return;
  checkModel(context, request.model);
  refuseUnsupported(request, 'completions');
  if (request.echo === true) throw new FloeError('engine_rejected', 'echo is not supported by the simulated engine');
  const prompts = promptLists(context, request.prompt);
  const call = new CompletionCall(exchange, context, request, head, prompts);
  await (request.stream === true ? call.stream() : call.reply());
}

/** Prompts as ids. Throws `engine_rejected` for an id outside the vocabulary. */
function promptLists(context: VllmContext, prompt: CompletionRequest['prompt']): number[][] {
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

type ChoiceState = {
  readonly index: number;
  /** Index among the choices of one prompt. */
  readonly sample: number;
  readonly promptIds: readonly number[];
  readonly wire: WireChoice;
  sampled: number;
  textLength: number;
};

/** One completion call: `n` choices per prompt, sampled side by side. */
class CompletionCall {
  private readonly exchange: Exchange;
  private readonly context: VllmContext;
  private readonly request: CompletionRequest;
  private readonly head: CallHead;
  private readonly resetAt: number | null;
  private readonly choices: ChoiceState[];
  private readonly created: number;
  private cachedTokens = 0;

  constructor(
    exchange: Exchange,
    context: VllmContext,
    request: CompletionRequest,
    head: CallHead,
    prompts: number[][],
  ) {
    this.exchange = exchange;
    this.context = context;
    this.request = request;
    this.head = head;
    this.resetAt = resetAt(head.plan);
    this.created = Math.floor(context.clock.nowMs() / 1000);
    const n = request.n ?? 1;
    for (const prompt of prompts) this.maxTokens(prompt);
    this.choices = prompts.flatMap((promptIds, prompt) =>
      Array.from({ length: n }, (_, sample) => ({
        index: prompt * n + sample,
        sample,
        promptIds,
        wire: new WireChoice({
          plan: head.plan,
          mode: context.config.logprobsMode,
          vocabulary: context.vocabulary,
          ledger: context.ledger,
          requestId: head.requestId,
        }),
        sampled: 0,
        textLength: 0,
      })),
    );
  }

  async reply(): Promise<void> {
    const choices = await Promise.all(this.choices.map((choice) => this.wholeChoice(choice)));
    if (this.exchange.signal.aborted) return this.context.metrics.clientGone();
    const body = { ...this.envelope(), choices, usage: this.usage() };
    if (this.resetAt === null) return this.exchange.json(200, body);
    const text = JSON.stringify(body);
    this.exchange.response.writeHead(200, { 'content-type': 'application/json', 'content-length': text.length });
    this.exchange.response.write(text.slice(0, Math.floor(text.length / 2)), () => this.exchange.reset());
  }

  async stream(): Promise<void> {
    this.exchange.beginStream();
    await Promise.all(this.choices.map((choice) => this.streamChoice(choice)));
    if (this.exchange.signal.aborted) return this.context.metrics.clientGone();
    if (this.request.stream_options?.include_usage === true) {
      await this.exchange.event({ ...this.envelope(), choices: [], usage: this.usage() });
    }
    await this.exchange.event('[DONE]');
    this.exchange.end();
  }

  private maxTokens(promptIds: readonly number[]): number {
    const { maxModelLen } = this.context.engine.options;
    const room = Math.max(1, maxModelLen - promptIds.length);
    const asked = this.request.max_tokens ?? Math.min(DEFAULT_MAX_TOKENS, room);
    return boundedMaxTokens(maxModelLen, promptIds.length, asked);
  }

  private async *events(choice: ChoiceState): AsyncGenerator<GenerateEvent, void, undefined> {
    const { context, request, head } = this;
    const call: GenerateCall = {
      requestId: head.requestId,
      choice: choice.sample,
      sessionId: head.sessionId,
      promptIds: choice.promptIds,
      params: samplingParams(request, context.config.generationConfig, this.maxTokens(choice.promptIds), null),
      topCount: request.logprobs ?? 0,
      cacheSalt: request.cache_salt ?? '',
      eventTokens:
        request.stream === true ? Math.max(context.config.streamInterval, request.stream_interval ?? 1) : null,
      signal: this.exchange.signal,
      faults: engineFaults(head.plan),
    };
    for await (const event of context.engine.generate(call)) {
      if (event.kind === 'start') this.cachedTokens = event.cachedTokens;
      else choice.sampled += event.tokens.length;
      yield event;
    }
  }

  private async wholeChoice(choice: ChoiceState): Promise<object> {
    const ids: number[] = [];
    const logprobs: WireToken[] = [];
    const tokens: SampledToken[] = [];
    let named = true;
    let text = '';
    let finish: Extract<GenerateEvent, { kind: 'finish' }> | null = null;
    for await (const event of this.events(choice)) {
      if (event.kind === 'start') continue;
      text += event.pieces.map((piece) => piece.text).join('');
      if (event.kind === 'finish') finish = event;
      const wire = choice.wire.take(event.tokens);
      named &&= wire.ids !== undefined;
      for (const id of wire.ids ?? []) ids.push(id);
      logprobs.push(...wire.logprobs);
      tokens.push(...event.tokens);
    }
    const withIds = this.request.return_token_ids === true && named;
    return {
      index: choice.index,
      text,
      logprobs: this.logprobsObject(choice, logprobs, tokens),
      ...this.finishFields(finish),
      ...(withIds ? { token_ids: ids, prompt_token_ids: choice.wire.promptIds(choice.promptIds) } : {}),
      prompt_logprobs: null,
    };
  }

  private async streamChoice(choice: ChoiceState): Promise<void> {
    let first = true;
    for await (const event of this.events(choice)) {
      if (event.kind === 'start') continue;
      const text = event.pieces.map((piece) => piece.text).join('');
      const wire = choice.wire.take(event.tokens);
      const withIds = this.request.return_token_ids === true && wire.ids !== undefined;
      await this.chunk({
        index: choice.index,
        text,
        logprobs: this.logprobsObject(choice, wire.logprobs, event.tokens),
        ...(event.kind === 'finish' ? this.finishFields(event) : { finish_reason: null, stop_reason: null }),
        ...(withIds ? { token_ids: wire.ids } : {}),
        ...(withIds && first ? { prompt_token_ids: choice.wire.promptIds(choice.promptIds) } : {}),
      });
      first = false;
      if (this.resetAt !== null && choice.sampled >= this.resetAt) return this.exchange.reset();
    }
  }

  private async chunk(choice: object): Promise<void> {
    await this.exchange.event({ ...this.envelope(), choices: [choice] });
  }

  private finishFields(finish: Extract<GenerateEvent, { kind: 'finish' }> | null): object {
    return {
      finish_reason: finish?.reason ?? 'abort',
      stop_reason: finish?.stop ?? null,
      ...(this.context.config.reportVersions ? { weight_versions: finish?.entry.version_spans ?? [] } : {}),
    };
  }

  /** The old completions shape: parallel lists. Null unless asked for. */
  private logprobsObject(
    choice: ChoiceState,
    wire: readonly WireToken[],
    tokens: readonly SampledToken[],
  ): object | null {
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
      top_logprobs: wire.map((_, index) =>
        Object.fromEntries(
          (tokens[index]?.top ?? []).map((other) => [
            tokenName(vocabulary, other.id, asId),
            wireLogprob(other, config.logprobsMode),
          ]),
        ),
      ),
      text_offset: offsets,
    };
  }

  private envelope(): object {
    const { model } = this.context.config;
    return { id: `cmpl-${this.head.requestId}`, object: 'text_completion', created: this.created, model };
  }

  private usage(): object {
    const prompt = [...new Set(this.choices.map(({ promptIds }) => promptIds))].reduce(
      (sum, ids) => sum + ids.length,
      0,
    );
    const sampled = this.choices.reduce((sum, choice) => sum + choice.wire.completionTokens(choice.sampled), 0);
    return {
      prompt_tokens: prompt,
      total_tokens: prompt + sampled,
      completion_tokens: sampled,
      ...(this.context.config.reportCachedTokens
        ? { prompt_tokens_details: { cached_tokens: this.cachedTokens } }
        : {}),
    };
  }
}
