import { z } from 'zod';
import type { Clock } from '../../core/clock.ts';
import type { AssistantMessage, StopCause, VersionSpan } from '../../schema/index.ts';
import { type ComparedIds, compareIds, firstDifference, scanLogprobs } from '../chat/reply-scan.ts';
import {
  concatIds,
  concatLogprobs,
  idsFrom,
  idsSchema,
  invalidReply,
  logprobEntriesFrom,
  parseReplyJson,
  parseWith,
  resumedUsage,
  scannedLogprobsSchema,
  usageSchema,
  versionsSchema,
} from '../chat/reply-tokens.ts';
import type { GenerateRequest, PromptIds, SampledTokens } from '../engine.ts';
import type { EngineServer } from '../engine-server.ts';
import { cutAtStop, MessageReader } from './message-reader.ts';
import { type Constraint, constraintOf } from './rendering.ts';
import { assertOwnReply, checkedReply, type ParsedReply, type ReplyContext, stopReasonSchema } from './reply.ts';
import { GENERATE_PATH, samplingFields } from './request.ts';
import { foreignRoutingSchema, joinedRouting, routedExpertsOf } from './routing.ts';
import type { ServerFacts } from './server-facts.ts';

const choiceSchema = z.looseObject({
  token_ids: idsSchema,
  logprobs: scannedLogprobsSchema,
  finish_reason: z.string(),
  stop_reason: stopReasonSchema,
  weight_versions: versionsSchema,
  routed_experts: foreignRoutingSchema,
});

const replySchema = z.looseObject({
  request_id: z.string().nullish(),
  model: z.string().nullish(),
  choices: z.array(choiceSchema).length(1),
  prompt_token_ids: idsSchema,
  usage: usageSchema.nullish(),
});
type ForeignReply = z.output<typeof replySchema>;

const NO_MESSAGE: AssistantMessage = { role: 'assistant', content: '' };
const COMMA = Buffer.from(',');
const NO_IDS = new Int32Array(0);

/** The token ids that close a turn, and how the parsers treat them. */
export type TurnEnds = {
  readonly closeIds: ReadonlySet<number>;
  /** Whether the parsers show the closing token as text. They must then be given the ids without it. */
  readonly isCloseShown: boolean;
};

/** A request whose prompt is given as token ids. */
export type TokenRequest = GenerateRequest & { readonly prompt: PromptIds };

/**
 * A reply, and in `newSpans` the version spans of the tokens that this call sampled, counted from its own first token; `null` when the
 * server does not report them.
 */
export type TokenReply = { readonly reply: ParsedReply; readonly newSpans: readonly VersionSpan[] | null };

/**
 * Runs calls whose prompt is token ids: samples with `/inference/v1/generate`, and gets the message from
 * `/v1/chat/completions/derender`.
 */
export class TokenCalls {
  private readonly server: EngineServer;
  private readonly facts: ServerFacts;
  private readonly ends: TurnEnds;
  private readonly reader: MessageReader;

  constructor(server: EngineServer, facts: ServerFacts, ends: TurnEnds, clock: Clock) {
    this.server = server;
    this.facts = facts;
    this.ends = ends;
    this.reader = new MessageReader(server, facts, clock);
  }

  /**
   * Samples one reply, which begins with `resumeFrom`. A reply that reports neither its prompt nor the prompt's length is rejected
   * with `details.unverifiable`.
   */
  async generate(request: TokenRequest, context: ReplyContext, signal: AbortSignal): Promise<TokenReply> {
    const { resumeFrom } = request;
    const bound = request.maxTokens === null ? null : request.maxTokens - (resumeFrom?.responseIds.length ?? 0);
    if (resumeFrom !== null && bound !== null && bound <= 0) return this.atBound(request, resumeFrom, context, signal);
    const constraint = await constraintOf(this.server, this.facts.model, request, signal);
    const sent = this.sentIds(request);
    const body = this.body(request, sent, bound, constraint);
    const reply = await this.server.post(GENERATE_PATH, body, request, signal);
    return this.complete(request, parseGenerated(await reply.read(), request, sent, context), context, signal);
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

  private body(request: TokenRequest, sent: SentIds, bound: number | null, constraint: Constraint | null): Buffer {
    const { model, maxModelLen, unknownFields } = this.facts;
    const { stop, seed, cacheSalt } = request;
    // vLLM ends a reply at the end of its context, but refuses a higher token limit, so the limit is lowered here. A prompt that fills
    // the context is left to vLLM to refuse, in its own words.
    const capacity = maxModelLen === null ? null : Math.max(1, maxModelLen - sent.count);
    const maxTokens = bound === null || capacity === null ? (bound ?? capacity) : Math.min(bound, capacity);
    const params = JSON.stringify({
      ...samplingFields(request, unknownFields),
      ...(maxTokens === null ? {} : { max_tokens: maxTokens }),
      ...(stop.length === 0 ? {} : { stop }),
      ...(seed === null ? {} : { seed }),
      logprobs: 0,
    });
    const outputs = constraint === null ? '' : `,"structured_outputs":${constraint.structuredOutputs}`;
    const parser = constraint?.reasoningParser ?? null;
    const head = `{"model":${JSON.stringify(model)},"token_ids":[`;
    const tail =
      `],"sampling_params":${params.slice(0, -1)}${outputs}},"stream":false,"return_token_ids":true` +
      (cacheSalt === null || unknownFields.has('cache_salt') ? '' : `,"cache_salt":${JSON.stringify(cacheSalt)}`) +
      (parser === null ? '}' : `,"reasoning_parser_kwargs":${parser}}`);
    return Buffer.concat([Buffer.from(head), sent.text, Buffer.from(tail)]);
  }

  /**
   * Makes the reply for a call whose earlier tokens have already reached its token limit. Nothing is sampled; only the message is parsed
   * from these tokens.
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
   * Determines what ended a reply, as far as its ids and the server show it. Not every release reports stop strings; when some were
   * requested from a release that does not, the last id counts as the cause only if it is known to close turns.
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

/** The ids that a call sends, its prompt followed by the tokens of `resumeFrom`: as JSON text without brackets, and as arrays. */
type SentIds = { readonly text: Buffer; readonly parts: readonly Int32Array[]; readonly count: number };

type Generated = {
  /** The reply without its message. */
  readonly sampled: ParsedReply;
  /** Whether the reply has a field for the stop reason, even a null one. */
  readonly reportsStop: boolean;
};

/** Parses a reply of `/inference/v1/generate` with status 200. Throws `engine_error` for a reply that is wrong. */
function parseGenerated(body: Buffer, request: TokenRequest, sent: SentIds, context: ReplyContext): Generated {
  const compared = compareIds(body, 'prompt_token_ids', sent.text, sent.parts);
  const logprobs = scanLogprobs(body);
  const reply = parseWith(replySchema, parseReplyJson(body, compared && { ids: NO_IDS, ...compared }, logprobs));
  assertOwnReply({ id: reply.request_id, model: reply.model }, context);
  assertSentPrompt(reply, compared, sent);
  const choice = reply.choices[0];
  const responseIds = idsFrom(choice?.token_ids, null, 'token_ids');
  const usage = reply.usage ?? { prompt_tokens: sent.count, completion_tokens: responseIds.length };
  const sampled = checkedReply({
    // The ids have already been compared with those that were sent; here only their number is checked, against the usage.
    promptIds: sent.parts.length === 1 ? request.prompt.ids : new Int32Array(sent.count),
    responseIds,
    logprobs: logprobEntriesFrom(choice?.logprobs?.content, logprobs),
    versions: choice?.weight_versions,
    message: NO_MESSAGE,
    finishReason: choice?.finish_reason ?? '',
    stopReason: choice?.stop_reason,
    usage,
    routedExperts: routedExpertsOf(choice?.routed_experts, sent.count + responseIds.length),
  });
  return { sampled, reportsStop: choice?.stop_reason !== undefined };
}

/** Throws `engine_error` for a reply to a prompt other than the sent one, and for a reply that does not show what its prompt was. */
function assertSentPrompt(reply: ForeignReply, compared: ComparedIds | null, sent: SentIds): void {
  const { prompt_token_ids: echoed, usage } = reply;
  if (compared !== null || Array.isArray(echoed)) {
    const difference = compared === null ? firstDifference(echoed as number[], sent.parts) : compared.difference;
    if (difference === null) return;
    throw invalidReply(`prompt_token_ids are not the ${sent.count} ids that were sent, from index ${difference} on`);
  }
  if (echoed !== null && echoed !== undefined) throw invalidReply('prompt_token_ids is not an array of ids');
  if (usage === null || usage === undefined) {
    const reason = 'neither prompt_token_ids nor usage is present, so that its prompt cannot be verified';
    throw invalidReply(reason, undefined, { unverifiable: true });
  }
}

/** Joins the tokens of both parts of a reply. The version spans are those of the later part, counted from its own first token. */
function joined(first: SampledTokens, later: ParsedReply): ParsedReply {
  return {
    ...later,
    responseIds: concatIds(first.responseIds, later.responseIds),
    responseLogprobs: concatLogprobs(first.responseLogprobs, later.responseLogprobs),
    routedExperts: joinedRouting(first.routedExperts, later.routedExperts),
  };
}
