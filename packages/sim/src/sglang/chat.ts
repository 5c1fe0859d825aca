import { FloeError, parseAs } from '@floe-rl/core';
import type { SimContext } from '../context.ts';
import { applyEarlyFault } from '../fault-effects.ts';
import type { Exchange } from '../http.ts';
import { type ChatMessage, templateMessages } from '../messages.ts';
import type { CallDelta, MessageDelta } from '../reply-parser.ts';
import { parsesToolCalls, requestedConstraint } from '../requested-constraint.ts';
import type { CallHead, FinishEvent } from '../sampled-call.ts';
import type { SamplingParams } from '../sampler.ts';
import { renderChat } from '../template.ts';
import { chatLogprobs, type WireToken } from '../wire-choice.ts';
import { boundedNewTokens, faultReplies } from './errors.ts';
import { type ReplyStep, SglangReply } from './reply.ts';
import { parseCalls, ReplyTextStream, separateReasoning, toolNames } from './reply-text.ts';
import {
  type ChatRequest,
  cacheSaltOf,
  chatRequestSchema,
  checkFields,
  checkIds,
  type RequestedIds,
  readCallHead,
  requestedIds,
} from './request.ts';
import { samplingParams } from './sampling.ts';
import type { SglangState } from './state.ts';

/** Handles `POST /v1/chat/completions`. */
export async function chatCompletions(exchange: Exchange, state: SglangState): Promise<void> {
  const request = parseAs(chatRequestSchema, await exchange.body(), 'chat completion request');
  const head = readCallHead(exchange, state, request);
  const stream = request.stream ?? false;
  if (applyEarlyFault(exchange, head.plan, stream, faultReplies(exchange, state.context.config.maxModelLen))) return;
  checkFields(state, request, chatRequestSchema.shape);
  if ((request.top_logprobs ?? 0) > 0 && request.logprobs !== true) {
    throw new FloeError('engine_rejected', 'when using `top_logprobs`, `logprobs` must be set to true.');
  }
  const ids = requestedIds(exchange, state, request);
  const task = newTask(state, request);
  await state.track(head.requestId, () => {
    const call = new ChatCall(exchange, state, request, head, { ...task, ids });
    return stream ? call.stream() : call.reply();
  });
}

type Task = {
  readonly promptIds: readonly number[];
  readonly params: SamplingParams;
  readonly ids: RequestedIds;
};

function newTask(state: SglangState, request: ChatRequest): Omit<Task, 'ids'> {
  const { engine, config } = state.context;
  // A request that contains prompt ids is sampled from these ids; its messages only determine how the reply is parsed.
  const inputIds = request.input_ids ?? null;
  const promptIds = inputIds === null ? chatPromptIds(state.context, request) : checkIds(state, inputIds);
  const requestedTokens = request.max_completion_tokens ?? request.max_tokens ?? null;
  const params = samplingParams(request, config.generationConfig, {
    maxTokens: boundedNewTokens(config.maxModelLen, promptIds.length, requestedTokens),
    seed: request.seed ?? null,
    constraint: requestedConstraint(request, engine.options.policy, promptIds),
  });
  return { promptIds, params };
}

/** Samples and sends the reply to one chat request. */
class ChatCall {
  private readonly exchange: Exchange;
  private readonly state: SglangState;
  private readonly request: ChatRequest;
  private readonly ids: RequestedIds;
  private readonly sglangReply: SglangReply;
  private readonly newCallId: (index: number) => string;

  constructor(exchange: Exchange, state: SglangState, request: ChatRequest, head: CallHead, task: Task) {
    this.exchange = exchange;
    this.state = state;
    this.request = request;
    this.ids = task.ids;
    const repeat = head.plan.has('duplicate_call_ids');
    this.newCallId = state.context.toolCallIds.forReply(head.sessionId, repeat, 'call_');
    this.sglangReply = new SglangReply(
      exchange,
      state,
      {
        head,
        endpoint: exchange.url.pathname,
        promptForm: (request.input_ids ?? null) === null ? 'messages' : 'ids',
        stream: request.stream ?? false,
        cacheSalt: cacheSaltOf(request),
        topCount: request.logprobs === true ? (request.top_logprobs ?? 0) : 0,
      },
      task,
    );
  }

  async reply(): Promise<void> {
    let text = '';
    let ids: number[] | null = [];
    const wire: WireToken[] = [];
    for await (const step of this.sglangReply.steps()) {
      text += step.text;
      for (const id of step.ids ?? []) ids?.push(id);
      if (step.ids === undefined) ids = null;
      wire.push(...step.wire);
      if (step.finish !== null) return this.sglangReply.call.sendJson(this.body(text, ids, wire, step.finish));
    }
  }

  async stream(): Promise<void> {
    const { exchange, sglangReply, request } = this;
    const { call, choice } = sglangReply;
    const text = new ReplyTextStream({
      insideThinking: this.promptOpensThinking,
      separateReasoning: request.separate_reasoning ?? true,
      tools: parsesToolCalls(request) ? toolNames(request.tools) : null,
      newCallId: this.newCallId,
    });
    const ids: number[] = [];
    let begun = false;
    exchange.beginStream();
    for await (const step of sglangReply.steps()) {
      if (!begun) await this.roleChunk();
      begun = true;
      const delta = text.push(step.text, step.finish !== null);
      const isHidden = Object.keys(delta).length === 0;
      const lost = choice.wire.losesIds(isHidden, step.finish !== null);
      if (!lost) ids.push(...(step.ids ?? []));
      await this.deltaChunks(delta, step, lost);
      if (call.breakStreamIfDue(choice)) return;
      if (step.finish !== null) await this.finishChunks(step.finish, ids, text.hasShownCalls);
    }
    const usage = { ...this.envelope('chat.completion.chunk'), choices: [], usage: sglangReply.usage() };
    await call.endStream(...(request.stream_options?.include_usage === true ? [usage] : []), '[DONE]');
  }

  /** Whether the template opens a thinking block. SGLang derives this from the template, even when the request contains prompt ids. */
  private get promptOpensThinking(): boolean {
    return this.state.context.mode === 'open_think';
  }

  private body(text: string, ids: readonly number[] | null, wire: readonly WireToken[], finish: FinishEvent): object {
    const { request, sglangReply, ids: requested } = this;
    const message = parseMessage(request, text, this.promptOpensThinking, this.newCallId);
    const meta = sglangReply.metaInfo({
      logprobs: request.logprobs === true ? wire : null,
      logprobCount: wire.length,
      withText: true,
      topCount: request.top_logprobs ?? 0,
      inputLogprobs: [],
      finish,
      routedFrom: this.routedFrom,
    });
    const stopped = sglangReply.finishReason(finish) ?? {};
    // SGLang's tool-call parser also changes the finish reason in the object that `meta_info` contains.
    const reason = message.hasCalls && finish.reason === 'stop' ? { type: 'tool_calls', matched: null } : stopped;
    const promptIds = sglangReply.promptIds;
    return {
      ...this.envelope('chat.completion'),
      choices: [
        {
          index: 0,
          message: message.wire,
          logprobs: request.logprobs === true ? { content: this.logprobEntries(wire) } : null,
          finish_reason: reason.type,
          matched_stop: reason.matched ?? null,
          ...(requested.choicePrompt && promptIds !== undefined ? { prompt_token_ids: promptIds } : {}),
          ...(requested.choiceOutput && ids !== null ? { token_ids: ids } : {}),
          ...(requested.metaInfo ? { meta_info: { ...meta, finish_reason: { ...stopped, ...reason } } } : {}),
        },
      ],
      usage: sglangReply.usage(),
      metadata: sglangReply.versions(finish),
      ...this.extension(ids, finish),
    };
  }

  /** Returns the field `sglext`, or an empty object when the field would be empty. */
  private extension(ids: readonly number[] | null, finish: FinishEvent): object {
    const { sglangReply, ids: requested, routedFrom } = this;
    const promptIds = sglangReply.promptIds;
    const inMeta = requested.metaInfo;
    const fields = {
      ...(routedFrom === null || inMeta ? {} : sglangReply.routed(finish, routedFrom)),
      ...(requested.extensionInput && promptIds !== undefined ? { input_ids: promptIds } : {}),
      ...(requested.extensionOutput && ids !== null && promptIds !== undefined ? { output_ids: [ids] } : {}),
    };
    return Object.keys(fields).length === 0 ? {} : { sglext: fields };
  }

  /** First token position whose routed experts the reply reports; `null` when the request does not demand them. */
  private get routedFrom(): number | null {
    return this.request.return_routed_experts === true ? (this.request.routed_experts_start_len ?? 0) : null;
  }

  private async roleChunk(): Promise<void> {
    const { promptIds } = this.sglangReply;
    const promptField = this.ids.chunkPrompt && promptIds !== undefined ? { prompt_token_ids: promptIds } : {};
    await this.chunk({ delta: { role: 'assistant', content: '' }, ...promptField });
  }

  /**
   * Sends the chunks of one sampling step. A step without visible text gets a chunk only when the request demands token ids in the stream.
   */
  private async deltaChunks(delta: MessageDelta, step: ReplyStep, lost: boolean): Promise<void> {
    const { reasoning, content, calls } = delta;
    const deltas: object[] = [
      ...(reasoning === undefined ? [] : [{ reasoning_content: reasoning }]),
      ...(content === undefined ? [] : [{ content }]),
      ...callDeltas(calls ?? []),
    ];
    if (deltas.length === 0 && !this.ids.chunkOutput) return;
    const hasLogprobs = this.request.logprobs === true && !lost;
    for (const [index, shown] of (deltas.length === 0 ? [{}] : deltas).entries()) {
      const logprobs = index > 0 ? [] : step.wire;
      await this.chunk({
        delta: shown,
        logprobs: hasLogprobs && logprobs.length > 0 ? { content: this.logprobEntries(logprobs) } : null,
        ...(this.ids.chunkOutput && !lost && index === 0 && step.ids !== undefined ? { token_ids: step.ids } : {}),
      });
    }
  }

  private async finishChunks(finish: FinishEvent, ids: readonly number[], hasCalls: boolean): Promise<void> {
    const reason = this.sglangReply.finishReason(finish) ?? {};
    await this.chunk({
      delta: {},
      finish_reason: hasCalls && reason.type === 'stop' ? 'tool_calls' : reason.type,
      matched_stop: reason.matched ?? null,
    });
    const extension = this.extension(ids, finish);
    if (Object.keys(extension).length === 0) return;
    await this.exchange.event({ ...this.envelope('chat.completion.chunk'), choices: [], ...extension });
  }

  private async chunk(fields: object): Promise<void> {
    const choice = { index: 0, logprobs: null, finish_reason: null, matched_stop: null, ...fields };
    await this.exchange.event({ ...this.envelope('chat.completion.chunk'), choices: [choice] });
  }

  private logprobEntries(wire: readonly WireToken[]): object[] {
    const { vocabulary, config } = this.state.context;
    return chatLogprobs(wire, { vocabulary, mode: config.logprobsMode, asId: false });
  }

  private envelope(object: string): object {
    const { rid, call } = this.sglangReply;
    return { id: rid, object, created: call.created, model: this.sglangReply.modelName(this.request.model) };
  }
}

/** The fields of a request from which its conversation is rendered. */
type RenderedFields = {
  readonly messages: readonly ChatMessage[];
  readonly tools?: readonly unknown[] | null | undefined;
  readonly tool_choice?: ChatRequest['tool_choice'];
  readonly continue_final_message?: boolean | null | undefined;
};

/**
 * Renders and encodes a conversation's prompt. The prompt ends with the opening of an assistant turn, unless the request continues the last
 * assistant message. With `tool_choice: none`, the tools are left out.
 */
export function chatPromptIds({ vocabulary, config, mode }: SimContext, request: RenderedFields): number[] {
  const continued = request.continue_final_message === true && request.messages.at(-1)?.role === 'assistant';
  const text = renderChat(templateMessages(request.messages, { vision: config.vision, anyArguments: false }), {
    mode,
    tools: request.tool_choice === 'none' ? [] : (request.tools ?? []),
    addGenerationPrompt: !continued,
    continueFinalMessage: continued,
  });
  return vocabulary.encode(text);
}

/** Returns the assistant message of a complete reply. Thinking is separated first; then calls are parsed in the rest of the text. */
function parseMessage(
  request: ChatRequest,
  text: string,
  insideThinking: boolean,
  newCallId: (index: number) => string,
): { readonly wire: object; readonly hasCalls: boolean } {
  const separate = request.separate_reasoning ?? true;
  const split = separate ? separateReasoning(text, insideThinking) : { reasoning: '', text };
  const parsed = parsesToolCalls(request)
    ? parseCalls(split.text, toolNames(request.tools))
    : { text: split.text, calls: [] };
  const calls = parsed.calls.map((call, index) => ({
    id: newCallId(index),
    index,
    type: 'function',
    function: { name: call.name, arguments: call.parameters },
  }));
  return {
    wire: {
      role: 'assistant',
      content: parsed.text,
      reasoning_content: split.reasoning === '' ? null : split.reasoning,
      tool_calls: calls.length === 0 ? null : calls,
    },
    hasCalls: calls.length > 0,
  };
}

/** Returns one stream delta for each change to a tool call. */
function callDeltas(deltas: readonly CallDelta[]): object[] {
  return deltas.map((delta) => ({
    tool_calls: [
      'name' in delta
        ? { index: delta.index, id: delta.id, type: 'function', function: { name: delta.name, arguments: '' } }
        : { index: delta.index, id: null, type: 'function', function: { name: null, arguments: delta.argumentsText } },
    ],
  }));
}
