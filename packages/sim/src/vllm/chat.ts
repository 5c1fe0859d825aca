import type { SimContext } from '../context.ts';
import type { Exchange } from '../http.ts';
import type { MessageDelta, ReplyParser } from '../reply-parser.ts';
import { forcesToolCall } from '../requested-constraint.ts';
import { routedNpy } from '../routed-experts.ts';
import type { SampledToken } from '../run.ts';
import { type CallHead, type FinishEvent, SampledCall, type SampledChoice } from '../sampled-call.ts';
import { chatLogprobs, type WireToken } from '../wire-choice.ts';
import { type ChatTask, chatParser, chatTask, promptOpensThinking } from './chat-task.ts';
import { applyEarlyVllmFault, readCallHead } from './context.ts';
import { ThinkingTokenCounter, wireDelta, wireMessage, wireUsage } from './reply-fields.ts';
import { type ChatRequest, chatRequestSchema, parseRequest } from './request.ts';

const CHAT_PATH = '/v1/chat/completions';

function newCallIds(context: SimContext, { sessionId, plan }: CallHead): (index: number) => string {
  return context.toolCallIds.forReply(sessionId, plan.has('duplicate_call_ids'));
}

/** Handles `POST /v1/chat/completions`. */
export async function chatCompletions(exchange: Exchange, context: SimContext): Promise<void> {
  const request = parseRequest(context, chatRequestSchema, await exchange.body(), 'chat completion request');
  const head = readCallHead(exchange, context, request);
  if (applyEarlyVllmFault(exchange, context, head, request.stream ?? false)) return;
  const call = new ChatCall(exchange, context, request, head, chatTask(context, request));
  await (request.stream === true ? call.stream() : call.reply());
}

type ChoiceState = {
  readonly sampled: SampledChoice;
  readonly parser: ReplyParser;
  readonly thinking: ThinkingTokenCounter;
};

/** Samples the choices of one chat request concurrently and sends the reply. */
class ChatCall {
  private readonly exchange: Exchange;
  private readonly context: SimContext;
  private readonly request: ChatRequest;
  private readonly promptIds: readonly number[];
  private readonly call: SampledCall;
  private readonly choices: ChoiceState[];
  private readonly withIds: boolean;
  private readonly withLogprobs: boolean;

  constructor(exchange: Exchange, context: SimContext, request: ChatRequest, head: CallHead, task: ChatTask) {
    this.exchange = exchange;
    this.context = context;
    this.request = request;
    this.promptIds = task.promptIds;
    // Ids and logprobs would reveal the reasoning. With a reasoning parser, vLLM therefore sends neither for a request that hides
    // reasoning.
    const showsReasoning = request.include_reasoning ?? true;
    this.withIds = (request.return_token_ids ?? false) && showsReasoning;
    this.withLogprobs = (request.logprobs ?? false) && showsReasoning;
    this.call = new SampledCall(exchange, context, {
      head,
      endpoint: CHAT_PATH,
      promptForm: 'messages',
      stream: request.stream ?? false,
      streamInterval: request.stream_interval,
      cacheSalt: request.cache_salt,
      topCount: this.withLogprobs ? (request.top_logprobs ?? 0) : 0,
    });
    this.choices = Array.from({ length: request.n ?? 1 }, (_, index) => ({
      sampled: this.call.addChoice(task.promptIds, task.params, index),
      parser: chatParser(context, request, newCallIds(context, head)),
      thinking: new ThinkingTokenCounter(context.vocabulary.special, promptOpensThinking(context, request)),
    }));
  }

  async reply(): Promise<void> {
    const choices = await Promise.all(this.choices.map((choice) => this.wholeChoice(choice)));
    this.call.sendJson({
      ...this.envelope('chat.completion'),
      choices,
      service_tier: null,
      // The fingerprint of a real server ends with a digest of its configuration instead of zeros.
      system_fingerprint: `vllm-${this.context.config.version}-00000000`,
      usage: wireUsage(this.call.usage(), this.thinkingTokens),
      prompt_logprobs: null,
      prompt_token_ids: (this.withIds ? this.choices[0]?.sampled.wire.promptIds(this.promptIds) : null) ?? null,
      prompt_text: null,
      kv_transfer_params: null,
      ec_transfer_params: null,
      metrics: null,
    });
  }

  async stream(): Promise<void> {
    this.exchange.beginStream();
    await Promise.all(this.choices.map((choice) => this.streamChoice(choice)));
    const usage = {
      ...this.envelope('chat.completion.chunk'),
      choices: [],
      usage: wireUsage(this.call.usage(), this.thinkingTokens),
    };
    await this.call.endStream(...(this.request.stream_options?.include_usage === true ? [usage] : []), '[DONE]');
  }

  /** Number of thinking tokens over all choices. */
  private get thinkingTokens(): number {
    return this.choices.reduce((sum, { thinking }) => sum + thinking.tokens, 0);
  }

  private async wholeChoice({ sampled, parser, thinking }: ChoiceState): Promise<object> {
    const ids: number[] = [];
    const logprobs: object[] = [];
    let hasIds = true;
    let finish: FinishEvent | null = null;
    for await (const event of this.call.events(sampled)) {
      if (event.kind === 'start') continue;
      parser.push(event.pieces);
      thinking.count(event.tokens);
      const wire = sampled.wire.take(event.tokens);
      hasIds &&= wire.ids !== undefined;
      for (const id of wire.ids ?? []) ids.push(id);
      if (this.withLogprobs) logprobs.push(...this.logprobEntries(wire.logprobs));
      if (event.kind === 'finish') finish = event;
    }
    const { parsed } = parser;
    return {
      index: sampled.index,
      message: wireMessage(this.request, parsed, forcesToolCall(this.request)),
      logprobs: this.withLogprobs ? { content: logprobs } : null,
      routed_experts: null,
      ...this.finishFields(parsed.calls.length > 0, finish),
      token_ids: this.withIds && hasIds ? ids : null,
    };
  }

  private async streamChoice(choice: ChoiceState): Promise<void> {
    const { sampled, parser, thinking } = choice;
    let begun = false;
    for await (const event of this.call.events(sampled)) {
      if (!begun) {
        begun = true;
        const ids = this.withIds ? sampled.wire.promptIds(this.promptIds) : undefined;
        await this.chunk(
          sampled.index,
          { delta: { role: 'assistant', content: '' } },
          ids === undefined ? {} : { prompt_token_ids: ids },
        );
      }
      if (event.kind === 'start') continue;
      const delta = parser.push(event.pieces);
      thinking.count(event.tokens);
      const finishing = event.kind === 'finish' ? this.finishFields(parser.hasShownCalls, event) : null;
      await this.eventChunk(sampled, event.tokens, delta, finishing);
      if (this.call.breakStreamIfDue(sampled)) return;
    }
  }

  /**
   * Sends the chunk of one event. The chunk contains the event's ids and logprobs even when the parser shows no text for them. The last
   * chunk has the finish reason together with the last ids.
   */
  private async eventChunk(
    { index, wire: choice }: SampledChoice,
    tokens: readonly SampledToken[],
    delta: MessageDelta,
    finishing: object | null,
  ): Promise<void> {
    const wire = choice.take(tokens);
    const isHidden = Object.keys(delta).length === 0;
    const lost = choice.losesIds(isHidden, finishing !== null);
    if (isHidden && finishing === null && (lost || (!this.withIds && !this.withLogprobs))) return;
    await this.chunk(index, {
      delta: wireDelta(this.request, delta),
      logprobs: this.withLogprobs && !lost ? { content: this.logprobEntries(wire.logprobs) } : null,
      ...finishing,
      ...(this.withIds && !lost && wire.ids !== undefined ? { token_ids: wire.ids } : {}),
    });
  }

  private async chunk(index: number, fields: object, top: object = {}): Promise<void> {
    const body = { index, logprobs: null, finish_reason: null, ...fields };
    await this.exchange.event({ ...this.envelope('chat.completion.chunk'), choices: [body], ...top });
  }

  /**
   * Returns the fields that report how the reply ended. `hasCalls` is whether the client received tool calls, which can differ between a
   * complete reply and a stream.
   */
  private finishFields(hasCalls: boolean, finish: FinishEvent | null): object {
    const reason = finish?.reason ?? 'abort';
    const { reportVersions, routedExperts } = this.context.config;
    return {
      finish_reason: hasCalls && reason === 'stop' ? 'tool_calls' : reason,
      stop_reason: finish?.stop ?? null,
      ...(reportVersions === 'all' ? { weight_versions: finish?.spans ?? [] } : {}),
      ...(routedExperts && finish !== null
        ? { routed_experts: routedNpy(finish.entry, this.request.routed_experts_prompt_start ?? 0) }
        : {}),
    };
  }

  private logprobEntries(wire: readonly WireToken[]): object[] {
    const { vocabulary, config } = this.context;
    return chatLogprobs(wire, {
      vocabulary,
      mode: config.logprobsMode,
      asId: this.request.return_tokens_as_token_ids ?? false,
    });
  }

  private envelope(object: string): object {
    const { head, created } = this.call;
    return { id: `chatcmpl-${head.requestId}`, object, created, model: this.context.servedModel.name };
  }
}
