import { FloeError } from '../../core/errors.ts';
import { parseAs } from '../../core/parse.ts';
import { type CallHead, callHead, engineFaults, resetAt } from '../call-head.ts';
import { type MessageDelta, ReplyParser } from '../chat-reply.ts';
import type { Constraint } from '../constraint.ts';
import type { GenerateEvent } from '../engine.ts';
import type { Exchange } from '../http.ts';
import { templateMessages } from '../messages.ts';
import type { GenerateCall, SampledToken } from '../run.ts';
import { renderChat } from '../template.ts';
import { WireChoice, type WireToken } from '../wire-choice.ts';
import { failAsVllm } from './call.ts';
import { boundedMaxTokens, checkModel, type VllmContext } from './context.ts';
import { demandedForm, forcesCalls, readsCalls } from './form.ts';
import { wireDelta, wireMessage } from './message.ts';
import {
  type ChatRequest,
  chatRequestSchema,
  refuseUnsupported,
  samplingParams,
  type TokenizeChatRequest,
} from './request.ts';
import { chatLogprobs } from './wire.ts';

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
  const text = renderChat(templateMessages(request.messages, context.config.vision), {
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
  if (failAsVllm(exchange, context, head, request.stream ?? false)) return;
  checkModel(context, request.model);
  refuseUnsupported(request, 'chat');
  if ((request.top_logprobs ?? 0) > 0 && request.logprobs !== true) {
    throw new FloeError('engine_rejected', 'when using `top_logprobs`, `logprobs` must be set to true.');
  }
  const promptIds = chatPromptIds(context, request);
  const asked = request.max_completion_tokens ?? request.max_tokens ?? null;
  const maxTokens = boundedMaxTokens(context.engine.options.maxModelLen, promptIds.length, asked);
  const constraint = demandedForm(request, context.engine.options.policy, promptIds);
  const call = new ChatCall(exchange, context, request, head, { promptIds, maxTokens, constraint });
  await (request.stream === true ? call.stream() : call.reply());
}

type ChoiceState = {
  readonly index: number;
  readonly wire: WireChoice;
  readonly parser: ReplyParser;
  sampled: number;
};

/** What the request comes down to for the engine. */
type Task = {
  readonly promptIds: readonly number[];
  readonly maxTokens: number;
  readonly constraint: Constraint | null;
};

type Usage = { prompt_tokens: number; total_tokens: number; completion_tokens: number; prompt_tokens_details?: object };

/** One chat call: its choices are sampled side by side. */
class ChatCall {
  private readonly exchange: Exchange;
  private readonly context: VllmContext;
  private readonly request: ChatRequest;
  private readonly head: CallHead;
  private readonly promptIds: readonly number[];
  private readonly task: Task;
  private readonly resetAt: number | null;
  private readonly choices: ChoiceState[];
  private readonly created: number;
  private readonly beganMs: number;
  private readonly withIds: boolean;
  private readonly withLogprobs: boolean;
  private cachedTokens = 0;

  constructor(exchange: Exchange, context: VllmContext, request: ChatRequest, head: CallHead, task: Task) {
    this.exchange = exchange;
    this.context = context;
    this.request = request;
    this.head = head;
    this.task = task;
    this.promptIds = task.promptIds;
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

  private newCallId(): (index: number) => string {
    return this.context.callIds.forReply(this.head.sessionId, this.head.plan.has('duplicate_call_ids'));
  }

  private newChoice(index: number): ChoiceState {
    const { context, head, request } = this;
    return {
      index,
      wire: new WireChoice({
        plan: head.plan,
        mode: context.config.logprobsMode,
        vocabulary: context.vocabulary,
        ledger: context.ledger,
        requestId: head.requestId,
      }),
      parser: new ReplyParser({
        special: context.vocabulary.special,
        insideThinking: context.mode === 'open_think' && (request.add_generation_prompt ?? true),
        parseCalls: readsCalls(request),
        newCallId: this.newCallId(),
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
      params: samplingParams(request, context.config.generationConfig, this.task.maxTokens, this.task.constraint),
      topCount: this.withLogprobs ? (request.top_logprobs ?? 0) : 0,
      cacheSalt: request.cache_salt ?? '',
      eventTokens:
        request.stream === true ? Math.max(context.config.streamInterval, request.stream_interval ?? 1) : null,
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
    const { parsed } = choice.parser;
    return {
      index: choice.index,
      message: wireMessage(this.request, parsed, forcesCalls(this.request)),
      logprobs: this.withLogprobs ? { content: logprobs } : null,
      ...this.finishFields(parsed.calls.length > 0, finish),
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
      const delta = choice.parser.push(event.pieces);
      const finishing = event.kind === 'finish' ? this.finishFields(choice.parser.showedCalls, event) : null;
      await this.eventChunk(choice, event.tokens, delta, finishing);
      if (this.resetAt !== null && choice.sampled >= this.resetAt) return this.exchange.reset();
    }
  }

  /**
   * One chunk per event. Its ids and logprobs go with it even when the parser shows no text of them; the finish goes
   * with the last ids.
   */
  private async eventChunk(
    choice: ChoiceState,
    tokens: readonly SampledToken[],
    delta: MessageDelta,
    finishing: object | null,
  ): Promise<void> {
    const wire = choice.wire.take(tokens);
    const swallowed = Object.keys(delta).length === 0;
    const lost = choice.wire.losesIds(swallowed, finishing !== null);
    if (swallowed && finishing === null && (lost || (!this.withIds && !this.withLogprobs))) return;
    await this.chunk(choice, {
      delta: wireDelta(this.request, delta),
      logprobs: this.withLogprobs && !lost ? { content: this.logprobEntries(wire.logprobs, tokens) } : null,
      ...finishing,
      ...(this.withIds && !lost && wire.ids !== undefined ? { token_ids: wire.ids } : {}),
    });
  }

  private async chunk(choice: ChoiceState, fields: object, top: object = {}): Promise<void> {
    const body = { index: choice.index, logprobs: null, finish_reason: null, ...fields };
    await this.exchange.event({ ...this.envelope('chat.completion.chunk'), choices: [body], ...top });
  }

  /** `called` is whether the client has seen tool calls, which the two ways of reading may judge differently. */
  private finishFields(called: boolean, finish: Extract<GenerateEvent, { kind: 'finish' }> | null): object {
    const reason = finish?.reason ?? 'abort';
    return {
      finish_reason: called && reason === 'stop' ? 'tool_calls' : reason,
      stop_reason: finish?.stop ?? null,
      ...(this.context.config.reportVersions ? { weight_versions: finish?.entry.version_spans ?? [] } : {}),
    };
  }

  private logprobEntries(wire: readonly WireToken[], tokens: readonly SampledToken[]): object[] {
    const { vocabulary, config } = this.context;
    return chatLogprobs(wire, tokens, {
      vocabulary,
      mode: config.logprobsMode,
      asId: this.request.return_tokens_as_token_ids ?? false,
    });
  }

  private envelope(object: string): object {
    return { id: `chatcmpl-${this.head.requestId}`, object, created: this.created, model: this.context.config.model };
  }

  private usage(): Usage {
    const sampled = this.choices.reduce((sum, { sampled, wire }) => sum + wire.completionTokens(sampled), 0);
    return {
      prompt_tokens: this.promptIds.length,
      total_tokens: this.promptIds.length + sampled,
      completion_tokens: sampled,
      ...(this.context.config.reportCachedTokens
        ? { prompt_tokens_details: { cached_tokens: this.cachedTokens } }
        : {}),
    };
  }
}
