import { parseAs } from '@floe-rl/core';
import { applyEarlyFault } from '../fault-effects.ts';
import type { Exchange } from '../http.ts';
import { tokenName, type WireToken, wireLogprob } from '../wire-choice.ts';
import { boundedNewTokens, faultReplies } from './errors.ts';
import { SglangReply } from './reply.ts';
import {
  type CompletionRequest,
  cacheSaltOf,
  checkFields,
  checkIds,
  completionRequestSchema,
  isAtLeast,
  readCallHead,
} from './request.ts';
import { samplingParams } from './sampling.ts';
import type { SglangState } from './state.ts';

/** Maximum reply length in tokens when a completion request gives none. */
const DEFAULT_MAX_TOKENS = 16;

/** Handles `POST /v1/completions`. */
export async function completions(exchange: Exchange, state: SglangState): Promise<void> {
  const request = parseAs(completionRequestSchema, await exchange.body(), 'completion request');
  const head = readCallHead(exchange, state, request);
  const stream = request.stream ?? false;
  const { config, vocabulary } = state.context;
  if (applyEarlyFault(exchange, head.plan, stream, faultReplies(exchange, config.maxModelLen))) return;
  checkFields(state, request, completionRequestSchema.shape);
  const { prompt } = request;
  const promptIds = typeof prompt === 'string' ? vocabulary.encode(prompt) : checkIds(state, prompt);
  const requestedTokens =
    request.max_tokens ?? Math.min(DEFAULT_MAX_TOKENS, Math.max(1, config.maxModelLen - promptIds.length));
  const params = samplingParams(request, config.generationConfig, {
    maxTokens: boundedNewTokens(config.maxModelLen, promptIds.length, requestedTokens),
    seed: request.seed ?? null,
    constraint: null,
  });
  const shape = {
    head,
    endpoint: exchange.url.pathname,
    promptForm: typeof prompt === 'string' ? ('text' as const) : ('ids' as const),
    stream,
    cacheSalt: cacheSaltOf(request),
    topCount: request.logprobs ?? 0,
  };
  await state.track(head.requestId, () => {
    const reply = new SglangReply(exchange, state, shape, { promptIds, params });
    const call = new CompletionCall(exchange, state, request, reply);
    return stream ? call.stream() : call.reply();
  });
}

/** Samples and sends the reply to one completion request. */
class CompletionCall {
  private readonly exchange: Exchange;
  private readonly state: SglangState;
  private readonly request: CompletionRequest;
  private readonly sglangReply: SglangReply;

  constructor(exchange: Exchange, state: SglangState, request: CompletionRequest, reply: SglangReply) {
    this.exchange = exchange;
    this.state = state;
    this.request = request;
    this.sglangReply = reply;
  }

  async reply(): Promise<void> {
    const { sglangReply } = this;
    const wire: WireToken[] = [];
    let text = '';
    let ids: number[] | undefined = [];
    for await (const step of sglangReply.steps()) {
      text += step.text;
      wire.push(...step.wire);
      ids = step.ids === undefined ? undefined : ids?.concat(step.ids);
      if (step.finish === null) continue;
      const reason = sglangReply.finishReason(step.finish) ?? {};
      const choice = {
        index: 0,
        text,
        logprobs: this.logprobLists(wire),
        finish_reason: reason.type,
        matched_stop: reason.matched ?? null,
        ...this.idField(ids),
        ...this.promptIdField(ids),
      };
      return sglangReply.call.sendJson({
        ...this.envelope(),
        choices: [choice],
        usage: sglangReply.usage(),
        metadata: sglangReply.versions(step.finish),
      });
    }
  }

  async stream(): Promise<void> {
    const { exchange, sglangReply, request } = this;
    const { call, choice } = sglangReply;
    let first = true;
    exchange.beginStream();
    for await (const step of sglangReply.steps()) {
      const lost = choice.wire.losesIds(step.text === '', step.finish !== null);
      const reason = sglangReply.finishReason(step.finish);
      const shown = {
        index: 0,
        text: step.text,
        logprobs: this.logprobLists(lost ? [] : step.wire),
        finish_reason: reason?.type ?? null,
        matched_stop: reason?.matched ?? null,
        ...(lost ? {} : this.idField(step.ids)),
        ...(first ? this.promptIdField(step.ids) : {}),
      };
      first = false;
      await exchange.event({ ...this.envelope(), choices: [shown] });
      if (call.breakStreamIfDue(choice)) return;
    }
    const usage = { ...this.envelope(), choices: [], usage: sglangReply.usage() };
    await call.endStream(...(request.stream_options?.include_usage === true ? [usage] : []), '[DONE]');
  }

  private idField(ids: readonly number[] | undefined): object {
    return this.reportsIds && ids !== undefined ? { token_ids: ids } : {};
  }

  private promptIdField(ids: readonly number[] | undefined): object {
    return this.reportsIds && ids !== undefined ? { prompt_token_ids: this.sglangReply.promptIds } : {};
  }

  /**
   * Whether the reply reports token ids. Every SGLang release that accepts `return_token_ids` reports them in streams of this route as
   * well; the chat route does so only in newer releases.
   */
  private get reportsIds(): boolean {
    return this.request.return_token_ids === true && isAtLeast(this.state, 'token_ids');
  }

  /** Returns logprobs as the parallel lists of OpenAI's legacy completions API; `null` when the request does not demand logprobs. */
  private logprobLists(wire: readonly WireToken[]): object | null {
    if ((this.request.logprobs ?? null) === null) return null;
    const { vocabulary, config } = this.state.context;
    const name = (id: number): string => tokenName(vocabulary, id, false);
    return {
      tokens: wire.map(({ id }) => name(id)),
      token_logprobs: wire.map(({ logprob }) => logprob),
      top_logprobs: wire.map(({ top }) =>
        Object.fromEntries(top.map((other) => [name(other.id), wireLogprob(other, config.logprobsMode)])),
      ),
      // SGLang does not compute text offsets and sends -1 for each.
      text_offset: wire.map(() => -1),
    };
  }

  private envelope(): object {
    const { rid, call } = this.sglangReply;
    const model = this.sglangReply.modelName(this.request.model);
    return { id: rid, object: 'text_completion', created: call.created, model };
  }
}
