import { FloeError, parseAs } from '@floe-rl/core';
import { applyEarlyFault } from '../fault-effects.ts';
import type { Exchange } from '../http.ts';
import type { CallHead, FinishEvent } from '../sampled-call.ts';
import type { SamplingParams } from '../sampler.ts';
import type { WireToken } from '../wire-choice.ts';
import { boundedNewTokens, faultReplies, nativeError } from './errors.ts';
import { type LogprobTuple, SglangReply } from './reply.ts';
import {
  cacheSaltOf,
  checkFields,
  checkIds,
  type GenerateRequest,
  generateRequestSchema,
  readCallHead,
} from './request.ts';
import { jsonSchemaConstraint, NO_SAMPLING_DEFAULTS, samplingParams } from './sampling.ts';
import type { SglangState } from './state.ts';

/** Maximum reply length in tokens when a request gives none. */
const DEFAULT_NEW_TOKENS = 128;

/** Handles `POST /generate`. */
export async function generate(exchange: Exchange, state: SglangState): Promise<void> {
  const request = parseAs(generateRequestSchema, await exchange.body(), 'generate request');
  const head = readCallHead(exchange, state, request);
  const stream = request.stream ?? false;
  if (applyEarlyFault(exchange, head.plan, stream, faultReplies(exchange, state.context.config.maxModelLen))) return;
  checkFields(state, request, generateRequestSchema.shape);
  let begun = false;
  try {
    const task = newTask(state, request);
    await state.track(head.requestId, () => {
      begun = true;
      const call = new GenerateCall(exchange, state, request, head, task);
      return stream ? call.stream() : call.reply();
    });
  } catch (reason) {
    // SGLang starts a stream before it validates the request, so errors of a streamed request are sent as events.
    if (!stream || begun || !FloeError.is(reason)) throw reason;
    exchange.beginStream();
    await exchange.event(nativeError(reason.message));
    await exchange.event('[DONE]');
    exchange.end();
  }
}

type Task = {
  readonly promptIds: readonly number[];
  readonly params: SamplingParams;
  readonly inputLogprobs: readonly LogprobTuple[];
};

function newTask(state: SglangState, request: GenerateRequest): Task {
  const { vocabulary, engine, config } = state.context;
  const { text, input_ids: ids } = request;
  const hasText = text !== undefined && text !== null;
  const hasIds = ids !== undefined && ids !== null;
  if (hasText === hasIds) throw new FloeError('engine_rejected', 'Either text or input_ids should be provided.');
  const promptIds = hasIds ? checkIds(state, ids) : vocabulary.encode(text ?? '');
  const fields = request.sampling_params ?? {};
  const requestedTokens =
    fields.max_new_tokens ?? Math.min(DEFAULT_NEW_TOKENS, Math.max(1, config.maxModelLen - promptIds.length));
  const params = samplingParams(fields, NO_SAMPLING_DEFAULTS, {
    maxTokens: boundedNewTokens(config.maxModelLen, promptIds.length, requestedTokens),
    seed: fields.sampling_seed ?? null,
    constraint: jsonSchemaConstraint(fields.json_schema, engine.options.policy, promptIds),
  });
  return { promptIds, params, inputLogprobs: inputLogprobs(state, request, promptIds) };
}

/**
 * Returns the logprob tuples of prompt tokens from `logprob_start_len` on. The first of these tokens never has a logprob. The simulated
 * policy has no logprobs for the other prompt tokens, so a request for more than one token is refused.
 */
function inputLogprobs(state: SglangState, request: GenerateRequest, promptIds: readonly number[]): LogprobTuple[] {
  const start = request.logprob_start_len ?? -1;
  if (request.return_logprob !== true || start === -1 || start >= promptIds.length) return [];
  if (start < promptIds.length - 1) {
    throw new FloeError('engine_rejected', 'logprob_start_len: the simulated engine has no logprobs of prompt tokens');
  }
  const id = promptIds[start] as number;
  return [[null, id, request.return_text_in_logprobs === true ? state.context.vocabulary.decode([id]) : null]];
}

/** Samples and sends the reply to one request of `/generate`. */
class GenerateCall {
  private readonly exchange: Exchange;
  private readonly state: SglangState;
  private readonly request: GenerateRequest;
  private readonly task: Task;
  private readonly sglangReply: SglangReply;

  constructor(exchange: Exchange, state: SglangState, request: GenerateRequest, head: CallHead, task: Task) {
    this.exchange = exchange;
    this.state = state;
    this.request = request;
    this.task = task;
    this.sglangReply = new SglangReply(
      exchange,
      state,
      {
        head,
        endpoint: exchange.url.pathname,
        promptForm: (request.input_ids ?? null) === null ? 'text' : 'ids',
        stream: request.stream ?? false,
        cacheSalt: cacheSaltOf(request),
        topCount: request.return_logprob === true ? (request.top_logprobs_num ?? 0) : 0,
      },
      task,
    );
  }

  async reply(): Promise<void> {
    const progress = new ReplyProgress();
    for await (const step of this.sglangReply.steps()) {
      progress.add(step.text, step.ids, step.wire);
      if (step.finish !== null)
        return this.sglangReply.call.sendJson(this.body(progress, progress.logprobs.length, step.finish));
    }
  }

  async stream(): Promise<void> {
    const { exchange, sglangReply } = this;
    const { choice, call } = sglangReply;
    const incremental = this.state.context.config.incrementalStreaming;
    let shown = new ReplyProgress();
    let logprobCount = 0;
    exchange.beginStream();
    for await (const step of sglangReply.steps()) {
      const lost = choice.wire.losesIds(step.text === '', step.finish !== null);
      if (incremental) shown = new ReplyProgress();
      shown.add(step.text, lost ? [] : step.ids, lost ? [] : step.wire);
      logprobCount += lost ? 0 : step.wire.length;
      await exchange.event(this.body(shown, logprobCount, step.finish));
      if (call.breakStreamIfDue(choice)) return;
    }
    await call.endStream('[DONE]');
  }

  private body(shown: ReplyProgress, logprobCount: number, finish: FinishEvent | null): object {
    const { request, sglangReply } = this;
    const promptIds = sglangReply.promptIds;
    return {
      text: shown.text,
      ...(shown.ids === null ? {} : { output_ids: shown.ids }),
      ...(request.return_prompt_token_ids === true && promptIds !== undefined ? { prompt_token_ids: promptIds } : {}),
      meta_info: sglangReply.metaInfo({
        logprobs: request.return_logprob === true ? shown.logprobs : null,
        logprobCount,
        withText: request.return_text_in_logprobs ?? false,
        topCount: request.top_logprobs_num ?? 0,
        inputLogprobs: this.task.inputLogprobs,
        finish,
        routedFrom: request.return_routed_experts === true ? (request.routed_experts_start_len ?? 0) : null,
      }),
    };
  }
}

/** The content of a chunk: the reply's text, ids and logprobs so far, or with incremental streaming only the part since the last chunk. */
class ReplyProgress {
  text = '';
  /** Token ids of the chunk; `null` when an injected fault leaves them out. */
  ids: number[] | null = [];
  readonly logprobs: WireToken[] = [];

  add(text: string, ids: readonly number[] | undefined, logprobs: readonly WireToken[]): void {
    this.text += text;
    if (ids === undefined) this.ids = null;
    else for (const id of ids) this.ids?.push(id);
    for (const logprob of logprobs) this.logprobs.push(logprob);
  }
}
