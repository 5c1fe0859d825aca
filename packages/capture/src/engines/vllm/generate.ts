import { type Clock, FloeError } from '@floe-rl/core';
import type { AssistantMessage, StopCause, VersionSpan } from '@floe-rl/core/schema';
import { isEventStream } from '../chat/event-stream.ts';
import { concatIds, concatLogprobs, resumedUsage } from '../chat/reply-tokens.ts';
import { cutAtStop } from '../chat/stop-strings.ts';
import type { GenerateRequest, ReplyListener, SampledTokens } from '../engine.ts';
import type { EngineServer } from '../engine-server.ts';
import type { OpenReply } from '../http-exchange.ts';
import { type Generated, parseGenerated, type SentIds, type TokenRequest } from './generated.ts';
import { MessageReader } from './message-reader.ts';
import type { PreviewSupport } from './preview-probe.ts';
import { type Constraint, constraintOf } from './rendering.ts';
import type { ParsedReply, ReplyContext } from './reply.ts';
import { ReplyPreview } from './reply-preview.ts';
import { GENERATE_PATH, IDS_PER_CHUNK, samplingFields } from './request.ts';
import { joinedRouting } from './routing.ts';
import type { ServerFacts } from './server-facts.ts';
import { generatedStream } from './stream.ts';

const COMMA = Buffer.from(',');
const NO_IDS = new Int32Array(0);

/** The token ids that close a turn, and how the server's parsers treat them. */
export type TurnEnds = {
  readonly closeIds: ReadonlySet<number>;
  /** Whether the server's parsers write the end-of-turn token into the message as text. If so, the ids are sent to them without that token. */
  readonly isCloseShown: boolean;
};

/** The properties of the server's parsers. */
export type ParserFacts = { readonly ends: TurnEnds; readonly previews: PreviewSupport };

/**
 * A reply, and in `newSpans` the version spans of the tokens that this call sampled. Their positions count from the first of these tokens,
 * not from the start of a resumed reply. `newSpans` is `null` when the server does not report them.
 */
export type TokenReply = { readonly reply: ParsedReply; readonly newSpans: readonly VersionSpan[] | null };

/**
 * Runs calls whose prompt is token ids. It samples with `/inference/v1/generate`, and converts the sampled ids to a message with
 * `/v1/chat/completions/derender`.
 */
export class TokenCalls {
  private readonly server: EngineServer;
  private readonly facts: ServerFacts;
  private readonly ends: TurnEnds;
  private readonly previews: PreviewSupport;
  private readonly reader: MessageReader;
  private readonly clock: Clock;

  constructor(server: EngineServer, facts: ServerFacts, parsers: ParserFacts, clock: Clock) {
    this.server = server;
    this.facts = facts;
    this.ends = parsers.ends;
    this.previews = parsers.previews;
    this.clock = clock;
    this.reader = new MessageReader(server, facts, clock);
  }

  /**
   * Samples one reply, which begins with the tokens of `resumeFrom`. The request's listener is used if the server can parse incomplete
   * replies. An error has one of these details:
   * - `unverifiable`: the server reports neither the prompt nor its length.
   * - `lost_ids`: a stream lacks ids.
   * - `contradicts_preview`: the message does not begin with the text that the listener received.
   */
  async generate(request: TokenRequest, context: ReplyContext, signal: AbortSignal): Promise<TokenReply> {
    const { resumeFrom } = request;
    const bound = request.maxTokens === null ? null : request.maxTokens - (resumeFrom?.responseIds.length ?? 0);
    if (resumeFrom !== null && bound !== null && bound <= 0) return this.atBound(request, resumeFrom, context, signal);
    const constraint = await constraintOf(this.server, this.facts.model, request, signal);
    const sent = this.sentIds(request);
    // A resumed reply is not streamed, because the listener received its first part from the call that it resumes.
    const listener = this.previews.isSupported && resumeFrom === null ? request.listener : undefined;
    const body = this.body(request, sent, bound, constraint, listener !== undefined);
    const reply = await this.server.post(GENERATE_PATH, body, request, signal);
    if (listener !== undefined && isEventStream(reply)) {
      return this.streamed(request, sent, reply, listener, context, signal);
    }
    return this.complete(request, parseGenerated(await reply.read(), sent, context), context, signal);
  }

  private async streamed(
    request: TokenRequest,
    sent: SentIds,
    reply: OpenReply,
    listener: ReplyListener,
    context: ReplyContext,
    signal: AbortSignal,
  ): Promise<TokenReply> {
    const showsText = request.tools.length === 0 || this.previews.keepsTextBeforeCalls;
    const preview = new ReplyPreview({
      ...{ reader: this.reader, clock: this.clock },
      ...{ request, context, listener, showsText, signal },
    });
    const stream = generatedStream(sent, context, (ids) => preview.take(ids));
    try {
      await reply.each((bytes) => stream.push(bytes));
    } catch (error) {
      throw asLostConnection(error);
    } finally {
      await preview.end();
    }
    const result = await this.complete(request, stream.reply(), context, signal);
    // An aborted reply is not checked: it is incomplete, so the parser for complete replies may read it differently.
    if (result.reply.finishReason !== 'abort') preview.assertBeginningOf(result.reply.message);
    return result;
  }

  private sentIds({ prompt, resumeFrom }: TokenRequest): SentIds {
    const more = resumeFrom?.responseIds ?? NO_IDS;
    const text = more.length === 0 ? prompt.json : Buffer.concat([prompt.json, COMMA, Buffer.from(more.join(','))]);
    return {
      text,
      parts: more.length === 0 ? [prompt.ids] : [prompt.ids, more],
      count: prompt.ids.length + more.length,
    };
  }

  private body(
    request: TokenRequest,
    sent: SentIds,
    bound: number | null,
    constraint: Constraint | null,
    stream: boolean,
  ): Buffer {
    const { model, maxModelLen, unknownFields } = this.facts;
    const { stop, seed, policyVersion } = request;
    // vLLM ends a reply at the end of its context, but refuses a token limit that exceeds the context. The limit is therefore lowered. A
    // prompt that fills the context is still sent, so that the error has vLLM's own message.
    const capacity = maxModelLen === null ? null : Math.max(1, maxModelLen - sent.count);
    const maxTokens = bound === null || capacity === null ? (bound ?? capacity) : Math.min(bound, capacity);
    const params = JSON.stringify({
      ...samplingFields(request, unknownFields),
      ...(maxTokens === null ? {} : { max_tokens: maxTokens }),
      ...(stop.length === 0 ? {} : { stop }),
      ...(seed === null ? {} : { seed }),
      ...(stream && !unknownFields.has('stream_interval') ? { stream_interval: IDS_PER_CHUNK } : {}),
      logprobs: 0,
    });
    const outputs = constraint === null ? '' : `,"structured_outputs":${constraint.structuredOutputs}`;
    const parser = constraint?.reasoningParser ?? null;
    const head = `{"model":${JSON.stringify(model)},"token_ids":[`;
    const tail =
      `],"sampling_params":${params.slice(0, -1)}${outputs}},"stream":${stream},"return_token_ids":true` +
      (stream ? ',"stream_options":{"include_usage":true}' : '') +
      (policyVersion === null || unknownFields.has('cache_salt')
        ? ''
        : `,"cache_salt":${JSON.stringify(policyVersion)}`) +
      (parser === null ? '}' : `,"reasoning_parser_kwargs":${parser}}`);
    return Buffer.concat([Buffer.from(head), sent.text, Buffer.from(tail)]);
  }

  /**
   * Makes the reply for a resumed call whose earlier tokens have already reached the token limit. Nothing is sampled; only the message is
   * parsed from the earlier tokens.
   */
  private async atBound(
    request: TokenRequest,
    resumeFrom: SampledTokens,
    context: ReplyContext,
    signal: AbortSignal,
  ): Promise<TokenReply> {
    const promptIds = request.prompt.ids;
    const ids = resumeFrom.responseIds;
    const message = await this.reader.read(request, { promptIds, ids, finishReason: 'length' }, context, signal);
    const usage = { prompt_tokens: promptIds.length, completion_tokens: ids.length, cached_tokens: null };
    return { reply: { ...resumeFrom, promptIds, message, finishReason: 'length', stop: null, usage }, newSpans: [] };
  }

  /** Prepends the tokens of `resumeFrom` to the sampled ones, and parses the message from all of them. */
  private async complete(
    request: TokenRequest,
    { sampled, reportsStop }: Generated,
    context: ReplyContext,
    signal: AbortSignal,
  ): Promise<TokenReply> {
    const { resumeFrom, prompt } = request;
    const all = resumeFrom === null ? sampled : joined(resumeFrom, sampled);
    const { responseIds, finishReason } = all;
    const stopCause = this.stopCauseOf(request, sampled, reportsStop);
    const isCloseDropped = stopCause?.kind === 'token' && this.ends.isCloseShown;
    const ids = isCloseDropped ? responseIds.subarray(0, -1) : responseIds;
    const read = await this.reader.read(request, { promptIds: prompt.ids, ids, finishReason }, context, signal);
    const { message, stop } = this.withoutStopString(request, read, stopCause, finishReason);
    const hasCalls = message.tool_calls !== undefined && message.tool_calls.length > 0;
    return {
      reply: {
        ...all,
        promptIds: prompt.ids,
        usage: resumedUsage(prompt.ids.length, responseIds.length, all.usage.cached_tokens),
        message,
        stop,
        finishReason: hasCalls && finishReason === 'stop' ? 'tool_calls' : finishReason,
      },
      newSpans: sampled.versionSpans,
    };
  }

  /**
   * Determines which stop token or stop string ended a reply, as far as the reply shows it. Some vLLM releases do not report stop strings.
   * If such a release got a request with stop strings, the last id counts as the stop token only if it is known to close turns.
   */
  private stopCauseOf(
    { stop: stops }: GenerateRequest,
    { stop, finishReason, responseIds }: ParsedReply,
    reportsStop: boolean,
  ): StopCause | null {
    if (finishReason !== 'stop' || reportsStop || stops.length === 0) return stop;
    return this.ends.closeIds.has(responseIds.at(-1) ?? -1) ? stop : null;
  }

  private withoutStopString(
    { stop: stops }: GenerateRequest,
    message: AssistantMessage,
    cause: StopCause | null,
    finishReason: string,
  ): { message: AssistantMessage; stop: StopCause | null } {
    if (finishReason !== 'stop' || cause?.kind === 'token') return { message, stop: cause };
    const cut = cutAtStop(message, cause === null ? stops : [cause.text]);
    if (cut === null) return { message, stop: cause };
    return { message: cut.message, stop: { kind: 'string', text: cut.stop } };
  }
}

/**
 * Joins the tokens of the two parts of a resumed reply. The version spans of the result cover only `later`, counted from its own first token.
 */
function joined(first: SampledTokens, later: ParsedReply): ParsedReply {
  return {
    ...later,
    responseIds: concatIds(first.responseIds, later.responseIds),
    responseLogprobs: concatLogprobs(first.responseLogprobs, later.responseLogprobs),
    routedExperts: joinedRouting(first.routedExperts, later.routedExperts),
  };
}

/**
 * Converts the error of a stream that broke off to `engine_unavailable`, so that the call is retried. Without streaming, the call would be
 * retried as well, because a server that dies while it samples has sent no byte of the reply. A call is not retried after a part of its
 * reply was streamed.
 */
function asLostConnection(error: unknown): unknown {
  if (!FloeError.is(error) || error.details.broken_off !== true) return error;
  return new FloeError('engine_unavailable', error.message, { ...error.details, connection_lost: true }, error);
}
