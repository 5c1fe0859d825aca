import { randomUUID } from 'node:crypto';
import { FloeError } from '../../core/errors.ts';
import { parseAs } from '../../core/parse.ts';
import { type MessageDelta, type ParsedCall, ReplyParser } from '../chat-reply.ts';
import type { GenerateEvent } from '../engine.ts';
import type { Exchange } from '../http.ts';
import type { GenerateCall, SampledToken } from '../run.ts';
import { renderChat } from '../template.ts';
import { type CallHead, callHead, engineFaults, failEarly, resetAt } from './call.ts';
import { boundedMaxTokens, checkModel, type VllmContext } from './context.ts';
import {
  type ChatRequest,
  chatRequestSchema,
  refuseUnsupported,
  samplingParams,
  type TokenizeChatRequest,
  templateMessages,
} from './request.ts';
import { tokenName, WireChoice, type WireToken, wireLogprob } from './wire.ts';

/** Renders and encodes a chat request's prompt. */
export function chatPromptIds(context: VllmContext, request: TokenizeChatRequest): number[] {
  const continued = request.continue_final_message ?? false;
  const open = request.add_generation_prompt ?? true;
  if (continued && open) {
    throw new FloeError(
      'engine_rejected',
      'Cannot set both `continue_final_message` and `add_generation_prompt` to True.',
    );
  }
  const text = renderChat(templateMessages(request.messages), {
    mode: context.mode,
    tools: request.tools ?? [],
    addGenerationPrompt: open,
    continueFinalMessage: continued,
  });
  return context.vocabulary.encode(text);
}

/** POST /v1/chat/completions */
export async function chatCompletions(exchange: Exchange, context: VllmContext): Promise<void> {
  const request = parseAs(chatRequestSchema, await exchange.body(), 'chat completion request');
  const head = callHead(exchange, context, request);
  if (failEarly(exchange, head, request.stream ?? false)) return;
  checkModel(context, request.model);
  refuseUnsupported(request);
  if ((request.top_logprobs ?? 0) > 0 && request.logprobs !== true) {
    throw new FloeError('engine_rejected', 'when using `top_logprobs`, `logprobs` must be set to true.');
  }
  const promptIds = chatPromptIds(context, request);
  const asked = request.max_completion_tokens ?? request.max_tokens ?? null;
  const maxTokens = boundedMaxTokens(context.engine.options.maxModelLen, promptIds.length, asked);
  const call = new ChatCall(exchange, context, request, head, promptIds, maxTokens);
  await (request.stream === true ? call.stream() : call.reply());
}

type ChoiceState = {
  readonly index: number;
  readonly wire: WireChoice;
  readonly parser: ReplyParser;
  sampled: number;
};

type Usage = { prompt_tokens: number; total_tokens: number; completion_tokens: number; prompt_tokens_details?: object };

/** One chat call: its choices are sampled side by side. */
class ChatCall {
  private readonly exchange: Exchange;
  private readonly context: VllmContext;
  private readonly request: ChatRequest;
  private readonly head: CallHead;
  private readonly promptIds: readonly number[];
  private readonly maxTokens: number;
  private readonly resetAt: number | null;
  private readonly choices: ChoiceState[];
  private readonly created: number;
  private readonly beganMs: number;
  private readonly withIds: boolean;
  private readonly withLogprobs: boolean;
  private cachedTokens = 0;

  constructor(
    exchange: Exchange,
    context: VllmContext,
    request: ChatRequest,
    head: CallHead,
    promptIds: readonly number[],
    maxTokens: number,
  ) {
    this.exchange = exchange;
    this.context = context;
    this.request = request;
    this.head = head;
    this.promptIds = promptIds;
    this.maxTokens = maxTokens;
    this.resetAt = resetAt(head.plan);
    this.created = Math.floor(context.clock.nowMs() / 1000);
    this.beganMs = context.clock.monotonicMs();
    // With a reasoning parser, a request that hides reasoning gets neither ids nor logprobs: they would reveal it.
    const reveals = request.include_reasoning ?? true;
    this.withIds = (request.return_token_ids ?? false) && reveals;
    this.withLogprobs = (request.logprobs ?? false) && reveals;
    this.choices = Array.from({ length: request.n ?? 1 }, (_, index) => this.newChoice(index));
  }

  async reply(): Promise<void> {
    const choices = await Promise.all(this.choices.map((choice) => this.wholeChoice(choice)));
    if (this.exchange.signal.aborted) return this.context.metrics.clientGone();
    const body = {
      ...this.envelope('chat.completion'),
      choices,
      usage: this.usage(),
      ...(this.withIds ? { prompt_token_ids: this.choices[0]?.wire.promptIds(this.promptIds) } : {}),
      prompt_logprobs: null,
      kv_transfer_params: null,
    };
    if (this.resetAt === null) return this.exchange.json(200, body);
    const text = JSON.stringify(body);
    this.exchange.response.writeHead(200, { 'content-type': 'application/json', 'content-length': text.length });
    this.exchange.response.write(text.slice(0, Math.floor(text.length / 2)), () => this.exchange.reset());
  }

  async stream(): Promise<void> {
    const { exchange } = this;
    exchange.beginStream();
    await Promise.all(this.choices.map((choice) => this.streamChoice(choice)));
    if (exchange.signal.aborted) return this.context.metrics.clientGone();
    if (this.request.stream_options?.include_usage === true) {
      await exchange.event({ ...this.envelope('chat.completion.chunk'), choices: [], usage: this.usage() });
    }
    await exchange.event('[DONE]');
    exchange.end();
  }

  private newChoice(index: number): ChoiceState {
    const { context, head, request } = this;
    const tools = (request.tools ?? []).length > 0 && request.tool_choice !== 'none';
    return {
      index,
      wire: new WireChoice({
        plan: head.plan,
        mode: context.logprobsMode,
        vocabulary: context.vocabulary,
        ledger: context.ledger,
        requestId: head.requestId,
      }),
      parser: new ReplyParser({
        special: context.vocabulary.special,
        insideThinking: context.mode === 'open_think' && (request.add_generation_prompt ?? true),
        parseCalls: tools,
        newCallId: () => `chatcmpl-tool-${randomUUID().replaceAll('-', '')}`,
      }),
      sampled: 0,
    };
  }

  /** Events of one choice; `sampled` and the metrics are kept up on the way. */
  private async *events(choice: ChoiceState): AsyncGenerator<GenerateEvent, void, undefined> {
    const { context, request, head } = this;
    const call: GenerateCall = {
      requestId: head.requestId,
      choice: choice.index,
      sessionId: head.sessionId,
      promptIds: this.promptIds,
      params: samplingParams(request, context.generationConfig, this.maxTokens),
      topCount: this.withLogprobs ? (request.top_logprobs ?? 0) : 0,
      cacheSalt: request.cache_salt ?? '',
      eventTokens: request.stream === true ? Math.max(context.streamInterval, request.stream_interval ?? 1) : null,
      signal: this.exchange.signal,
      faults: engineFaults(head.plan),
    };
    for await (const event of context.engine.generate(call)) {
      if (event.kind === 'start') this.cachedTokens = event.cachedTokens;
      else {
        if (choice.sampled === 0 && event.tokens.length > 0) {
          context.metrics.firstTokenAfter(context.clock.monotonicMs() - this.beganMs);
        }
        choice.sampled += event.tokens.length;
      }
      yield event;
    }
  }

  private async wholeChoice(choice: ChoiceState): Promise<object> {
    const ids: number[] = [];
    const logprobs: object[] = [];
    let named = true;
    let finish: Extract<GenerateEvent, { kind: 'finish' }> | null = null;
    for await (const event of this.events(choice)) {
      if (event.kind === 'start') continue;
      choice.parser.push(event.pieces);
      const wire = choice.wire.take(event.tokens);
      named &&= wire.ids !== undefined;
      for (const id of wire.ids ?? []) ids.push(id);
      if (this.withLogprobs) logprobs.push(...this.logprobEntries(wire.logprobs, event.tokens));
      if (event.kind === 'finish') finish = event;
    }
    choice.parser.finish();
    const { reasoning, content, calls } = choice.parser.parsed;
    return {
      index: choice.index,
      message: {
        role: 'assistant',
        content,
        refusal: null,
        annotations: null,
        audio: null,
        function_call: null,
        tool_calls: calls.map(wireCall),
        reasoning: this.request.include_reasoning === false ? null : reasoning,
      },
      logprobs: this.withLogprobs ? { content: logprobs } : null,
      ...this.finishFields(choice, finish),
      ...(this.withIds && named ? { token_ids: ids } : {}),
    };
  }

  private async streamChoice(choice: ChoiceState): Promise<void> {
    let begun = false;
    for await (const event of this.events(choice)) {
      if (!begun) {
        begun = true;
        const ids = this.withIds ? choice.wire.promptIds(this.promptIds) : undefined;
        await this.chunk(
          choice,
          { delta: { role: 'assistant', content: '' } },
          ids === undefined ? {} : { prompt_token_ids: ids },
        );
      }
      if (event.kind === 'start') continue;
      const deltas = choice.parser.push(event.pieces);
      if (event.kind === 'finish') deltas.push(...choice.parser.finish());
      const finishing = event.kind === 'finish' ? this.finishFields(choice, event) : null;
      await this.eventChunks(choice, event.tokens, deltas, finishing);
      if (this.resetAt !== null && choice.sampled >= this.resetAt) return this.exchange.reset();
    }
  }

  /**
   * The ids of an event go with its last chunk, even when the parser shows no text of them, and the finish goes with
   * the last ids.
   */
  private async eventChunks(
    choice: ChoiceState,
    tokens: readonly SampledToken[],
    deltas: readonly MessageDelta[],
    finishing: object | null,
  ): Promise<void> {
    const wire = choice.wire.take(tokens);
    for (const delta of deltas.slice(0, -1)) await this.chunk(choice, { delta: this.wireDelta(delta) });
    const last = deltas.at(-1);
    if (last === undefined && finishing === null && !this.withIds && !this.withLogprobs) return;
    await this.chunk(choice, {
      delta: last === undefined ? {} : this.wireDelta(last),
      logprobs: this.withLogprobs ? { content: this.logprobEntries(wire.logprobs, tokens) } : null,
      ...finishing,
      ...(this.withIds && wire.ids !== undefined ? { token_ids: wire.ids } : {}),
    });
  }

  private async chunk(choice: ChoiceState, fields: object, top: object = {}): Promise<void> {
    const body = { index: choice.index, logprobs: null, finish_reason: null, ...fields };
    await this.exchange.event({ ...this.envelope('chat.completion.chunk'), choices: [body], ...top });
  }

  private wireDelta(delta: MessageDelta): object {
    if ('content' in delta) return { content: delta.content };
    if ('reasoning' in delta) return this.request.include_reasoning === false ? {} : { reasoning: delta.reasoning };
    return { tool_calls: [{ index: delta.call.index, ...wireCall(delta.call) }] };
  }

  private finishFields(choice: ChoiceState, finish: Extract<GenerateEvent, { kind: 'finish' }> | null): object {
    const reason = finish?.reason ?? 'abort';
    const called = reason === 'stop' && choice.parser.parsed.calls.length > 0;
    return {
      finish_reason: called ? 'tool_calls' : reason,
      stop_reason: finish?.stop ?? null,
      ...(this.context.reportVersions ? { weight_versions: finish?.entry.version_spans ?? [] } : {}),
    };
  }

  private logprobEntries(wire: readonly WireToken[], tokens: readonly SampledToken[]): object[] {
    const { vocabulary, logprobsMode } = this.context;
    const asId = this.request.return_tokens_as_token_ids ?? false;
    return wire.map(({ id, logprob }, index) => ({
      token: tokenName(vocabulary, id, asId),
      logprob,
      bytes: [...vocabulary.bytes(id)],
      top_logprobs: (tokens[index]?.top ?? []).map((other) => ({
        token: tokenName(vocabulary, other.id, asId),
        logprob: wireLogprob(other, logprobsMode),
        bytes: [...vocabulary.bytes(other.id)],
      })),
    }));
  }

  private envelope(object: string): object {
    return { id: `chatcmpl-${this.head.requestId}`, object, created: this.created, model: this.context.model };
  }

  private usage(): Usage {
    const sampled = this.choices.reduce((sum, { sampled, wire }) => sum + wire.completionTokens(sampled), 0);
    return {
      prompt_tokens: this.promptIds.length,
      total_tokens: this.promptIds.length + sampled,
      completion_tokens: sampled,
      ...(this.context.reportCachedTokens ? { prompt_tokens_details: { cached_tokens: this.cachedTokens } } : {}),
    };
  }
}

function wireCall(call: ParsedCall): object {
  return { id: call.id, type: 'function', function: { name: call.name, arguments: call.argumentsText } };
}
