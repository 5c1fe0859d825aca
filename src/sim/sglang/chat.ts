import { FloeError } from '../../core/errors.ts';
import { parseAs } from '../../core/parse.ts';
import type { CallHead } from '../call-head.ts';
import type { MessageDelta } from '../chat-reply.ts';
import { failEarly } from '../early-fault.ts';
import type { Exchange } from '../http.ts';
import type { SamplingParams } from '../run.ts';
import type { FinishEvent } from '../sampled-call.ts';
import { demandedForm, readsCalls } from '../vllm/form.ts';
import { chatLogprobs } from '../vllm/wire.ts';
import type { WireToken } from '../wire-choice.ts';
import { callDeltas, chatPromptIds, readMessage } from './chat-message.ts';
import { boundedNewTokens, earlyReplies } from './errors.ts';
import { type IdRequests, idRequests } from './id-requests.ts';
import { type ReplyStep, SglangReply } from './reply.ts';
import { toolNames } from './reply-text.ts';
import { type ChatRequest, cacheKey, chatRequestSchema, checkFields, checkIds, sglangHead } from './request.ts';
import { samplingParams } from './sampling.ts';
import type { SglangState } from './state.ts';
import { TextStream } from './text-stream.ts';

/** POST /v1/chat/completions */
export async function chatCompletions(exchange: Exchange, state: SglangState): Promise<void> {
  const request = parseAs(chatRequestSchema, await exchange.body(), 'chat completion request');
  const head = sglangHead(exchange, state, request);
  const stream = request.stream ?? false;
  if (failEarly(exchange, head, stream, earlyReplies(exchange, state.context.config.maxModelLen))) return;
  checkFields(state, request, chatRequestSchema.shape);
  if ((request.top_logprobs ?? 0) > 0 && request.logprobs !== true) {
    throw new FloeError('engine_rejected', 'when using `top_logprobs`, `logprobs` must be set to true.');
  }
  const ids = idRequests(exchange, state, request);
  const task = newTask(state, request);
  await state.track(head.requestId, () => {
    const call = new ChatCall(exchange, state, request, head, { ...task, ids });
    return stream ? call.stream() : call.reply();
  });
}

type Task = {
  readonly promptIds: readonly number[];
  readonly params: SamplingParams;
  readonly ids: IdRequests;
};

function newTask(state: SglangState, request: ChatRequest): Omit<Task, 'ids'> {
  const { engine, config } = state.context;
  // Given ids are what is sampled from; the messages then only say how the reply is to be read.
  const given = request.input_ids ?? null;
  const promptIds = given === null ? chatPromptIds(state.context, request) : checkIds(state, given);
  const asked = request.max_completion_tokens ?? request.max_tokens ?? null;
  const params = samplingParams(request, config.generationConfig, {
    maxTokens: boundedNewTokens(config.maxModelLen, promptIds.length, asked),
    seed: request.seed ?? null,
    constraint: demandedForm(request, engine.options.policy, promptIds),
  });
  return { promptIds, params };
}

/** One chat call. */
class ChatCall {
  private readonly exchange: Exchange;
  private readonly state: SglangState;
  private readonly request: ChatRequest;
  private readonly ids: IdRequests;
  private readonly sglangReply: SglangReply;
  private readonly newCallId: (index: number) => string;

  constructor(exchange: Exchange, state: SglangState, request: ChatRequest, head: CallHead, task: Task) {
    this.exchange = exchange;
    this.state = state;
    this.request = request;
    this.ids = task.ids;
    const repeat = head.plan.has('duplicate_call_ids');
    this.newCallId = state.context.callIds.forReply(head.sessionId, repeat, 'call_');
    this.sglangReply = new SglangReply(
      exchange,
      state,
      {
        head,
        endpoint: exchange.url.pathname,
        promptForm: (request.input_ids ?? null) === null ? 'messages' : 'ids',
        stream: request.stream ?? false,
        cacheSalt: cacheKey(request),
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
    const text = new TextStream({
      insideThinking: this.thinks,
      separateReasoning: request.separate_reasoning ?? true,
      tools: readsCalls(request) ? toolNames(request.tools) : null,
      newCallId: this.newCallId,
    });
    const ids: number[] = [];
    let begun = false;
    exchange.beginStream();
    for await (const step of sglangReply.steps()) {
      if (!begun) await this.roleChunk();
      begun = true;
      const delta = text.push(step.text, step.finish !== null);
      const swallowed = Object.keys(delta).length === 0;
      const lost = choice.wire.losesIds(swallowed, step.finish !== null);
      if (!lost) ids.push(...(step.ids ?? []));
      await this.deltaChunks(delta, step, lost);
      if (call.breaksStream(choice)) return;
      if (step.finish !== null) await this.finishChunks(step.finish, ids, text.showedCalls);
    }
    const usage = { ...this.envelope('chat.completion.chunk'), choices: [], usage: sglangReply.usage() };
    await call.endStream(...(request.stream_options?.include_usage === true ? [usage] : []), '[DONE]');
  }

  /** Whether the template has opened the thinking. Asked of the template alone, whatever the prompt's ids are. */
  private get thinks(): boolean {
    return this.state.context.mode === 'open_think';
  }

  private body(text: string, ids: readonly number[] | null, wire: readonly WireToken[], finish: FinishEvent): object {
    const { request, sglangReply, ids: wanted } = this;
    const message = readMessage(request, text, this.thinks, this.newCallId);
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
    // The parser of tool calls writes into the very object that meta_info shows.
    const reason = message.called && finish.reason === 'stop' ? { type: 'tool_calls', matched: null } : stopped;
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
          ...(wanted.choicePrompt && promptIds !== undefined ? { prompt_token_ids: promptIds } : {}),
          ...(wanted.choiceOutput && ids !== null ? { token_ids: ids } : {}),
          ...(wanted.metaInfo ? { meta_info: { ...meta, finish_reason: { ...stopped, ...reason } } } : {}),
        },
      ],
      usage: sglangReply.usage(),
      metadata: sglangReply.versions(finish),
      ...this.extension(ids, finish),
    };
  }

  /** `sglext`; without anything to tell, there is none. */
  private extension(ids: readonly number[] | null, finish: FinishEvent): object {
    const { sglangReply, ids: wanted, routedFrom } = this;
    const promptIds = sglangReply.promptIds;
    const inMeta = wanted.metaInfo;
    const fields = {
      ...(routedFrom === null || inMeta ? {} : sglangReply.routed(finish, routedFrom)),
      ...(wanted.extensionInput && promptIds !== undefined ? { input_ids: promptIds } : {}),
      ...(wanted.extensionOutput && ids !== null && promptIds !== undefined ? { output_ids: [ids] } : {}),
    };
    return Object.keys(fields).length === 0 ? {} : { sglext: fields };
  }

  private get routedFrom(): number | null {
    return this.request.return_routed_experts === true ? (this.request.routed_experts_start_len ?? 0) : null;
  }

  private async roleChunk(): Promise<void> {
    const { promptIds } = this.sglangReply;
    const told = this.ids.chunkPrompt && promptIds !== undefined ? { prompt_token_ids: promptIds } : {};
    await this.chunk({ delta: { role: 'assistant', content: '' }, ...told });
  }

  /** Tokens without a text to show are told of only by servers that stream ids. */
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
      const told = index > 0 ? [] : step.wire;
      await this.chunk({
        delta: shown,
        logprobs: hasLogprobs && told.length > 0 ? { content: this.logprobEntries(told) } : null,
        ...(this.ids.chunkOutput && !lost && index === 0 && step.ids !== undefined ? { token_ids: step.ids } : {}),
      });
    }
  }

  private async finishChunks(finish: FinishEvent, ids: readonly number[], called: boolean): Promise<void> {
    const reason = this.sglangReply.finishReason(finish) ?? {};
    await this.chunk({
      delta: {},
      finish_reason: called && reason.type === 'stop' ? 'tool_calls' : reason.type,
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
