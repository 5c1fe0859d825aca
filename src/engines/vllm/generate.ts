import { z } from 'zod';
import type { Clock } from '../../core/clock.ts';
import type { AssistantMessage, StopCause, Usage, VersionSpan } from '../../schema/index.ts';
import type { GenerateRequest, PromptIds, SampledTokens } from '../engine.ts';
import type { EngineServer } from '../engine-server.ts';
import { type ComparedIds, compareIds, firstDifference } from '../id-scan.ts';
import { scanLogprobs } from '../logprob-scan.ts';
import {
  foreignUsageSchema,
  idsOf,
  idsSchema,
  logprobsIn,
  type ParsedReply,
  parseReplyJson,
  recordable,
  refusal,
  scannedLogprobsSchema,
  shaped,
  stopReasonSchema,
  versionsSchema,
} from '../record.ts';
import { type Constraint, constraintOf } from './constraint.ts';
import { cutAtStop } from './derender.ts';
import { MessageReader } from './message-reader.ts';
import { GENERATE_PATH, type ServerFacts } from './probe.ts';
import { type ReplyContext, refuseForeign } from './reply.ts';
import { samplingFields } from './request.ts';
import { foreignRoutingSchema, joinedRouting, routedExpertsOf } from './routing.ts';

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
  usage: foreignUsageSchema.nullish(),
});
type ForeignReply = z.output<typeof replySchema>;

const NO_MESSAGE: AssistantMessage = { role: 'assistant', content: '' };
const COMMA = Buffer.from(',');
const NO_IDS = new Int32Array(0);

/** What is known of the tokens that end a turn. */
export type TurnEnds = {
  readonly closeIds: ReadonlySet<number>;
  /** The parsers take the token that ended a reply for text, so that they are given the ids without it. */
  readonly shown: boolean;
};

/** A request whose prompt is ids. */
export type TokenRequest = GenerateRequest & { readonly prompt: PromptIds };

/** Ids in, ids out: `/inference/v1/generate`, and a message by `/v1/chat/completions/derender`. */
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
   * One reply, with what was begun before it. Its version spans are null where the server does not tell those of what it sampled
   * now. A reply that tells neither its prompt nor how long that was is refused with `details.unverifiable`.
   */
  async generate(request: TokenRequest, context: ReplyContext, signal: AbortSignal): Promise<TokenReply> {
    const begun = request.begun;
    const left = request.maxTokens === null ? null : request.maxTokens - (begun?.responseIds.length ?? 0);
    if (begun !== null && left !== null && left <= 0) return this.finished(request, begun, context, signal);
    const constraint = await constraintOf(this.server, this.facts.model, request, signal);
    const sent = this.sentIds(request);
    const body = this.body(request, sent, left, constraint);
    const reply = await this.server.post(GENERATE_PATH, body, request, signal);
    return this.told(request, parseGenerated(await reply.read(), request, sent, context), context, signal);
  }

  /** The ids as text between brackets, and as arrays. */
  private sentIds({ prompt, begun }: TokenRequest): SentIds {
    const more = begun?.responseIds ?? NO_IDS;
    const text = more.length === 0 ? prompt.json : Buffer.concat([prompt.json, COMMA, Buffer.from(more.join(','))]);
    return {
      text,
      parts: more.length === 0 ? [prompt.ids] : [prompt.ids, more],
      count: prompt.ids.length + more.length,
    };
  }

  private body(request: TokenRequest, sent: SentIds, left: number | null, constraint: Constraint | null): Buffer {
    const { model, maxModelLen, unknownFields } = this.facts;
    const { stop, seed, cacheSalt } = request;
    // vLLM ends a reply where its context ends, but refuses a bound beyond that; a prompt without room is refused in its words.
    const room = maxModelLen === null ? null : Math.max(1, maxModelLen - sent.count);
    const maxTokens = left === null || room === null ? (left ?? room) : Math.min(left, room);
    const params = JSON.stringify({
      ...samplingFields(request, unknownFields),
      ...(maxTokens === null ? {} : { max_tokens: maxTokens }),
      ...(stop.length === 0 ? {} : { stop }),
      ...(seed === null ? {} : { seed }),
      logprobs: 0,
    });
    const form = constraint === null ? '' : `,"structured_outputs":${constraint.structuredOutputs}`;
    const parser = constraint?.reasoningParser ?? null;
    const head = `{"model":${JSON.stringify(model)},"token_ids":[`;
    const tail =
      `],"sampling_params":${params.slice(0, -1)}${form}},"stream":false,"return_token_ids":true` +
      (cacheSalt === null || unknownFields.has('cache_salt') ? '' : `,"cache_salt":${JSON.stringify(cacheSalt)}`) +
      (parser === null ? '}' : `,"reasoning_parser_kwargs":${parser}}`);
    return Buffer.concat([Buffer.from(head), sent.text, Buffer.from(tail)]);
  }

  /** A reply that was broken off exactly at its bound. */
  private async finished(
    request: TokenRequest,
    begun: SampledTokens,
    context: ReplyContext,
    signal: AbortSignal,
  ): Promise<TokenReply> {
    const ids = begun.responseIds;
    const message = await this.reader.read(request, ids, 'length', context, signal);
    const usage = { prompt_tokens: request.prompt.ids.length, completion_tokens: ids.length, cached_tokens: null };
    const reply = {
      ...begun,
      promptIds: request.prompt.ids,
      message,
      finishReason: 'length',
      stop: null,
      usage,
    } as const;
    return { reply, newSpans: [] };
  }

  /** Puts what was begun in front, and reads the message out of all of it. */
  private async told(
    request: TokenRequest,
    { sampled, tellsStop }: Generated,
    context: ReplyContext,
    signal: AbortSignal,
  ): Promise<TokenReply> {
    const { begun, prompt } = request;
    const all = begun === null ? sampled : joined(begun, sampled);
    const { responseIds, finishReason } = all;
    const ending = this.endingOf(request, sampled, tellsStop);
    const dropped = ending?.kind === 'token' && this.ends.shown;
    const ids = dropped ? responseIds.subarray(0, -1) : responseIds;
    const read = await this.reader.read(request, ids, finishReason, context, signal);
    const { message, stop } = this.ended(request, read, ending, finishReason);
    const calls = message.tool_calls !== undefined && message.tool_calls.length > 0;
    return {
      reply: {
        ...all,
        promptIds: prompt.ids,
        usage: usageOf(all, prompt.ids.length, responseIds.length),
        message,
        stop,
        finishReason: calls && finishReason === 'stop' ? 'tool_calls' : finishReason,
      },
      newSpans: sampled.versionSpans,
    };
  }

  /**
   * What ended a reply, as far as its ids and the server tell. Not every release tells stop strings; with any asked for, only a
   * last id that is known to close turns is then one that ended it.
   */
  private endingOf(
    { stop: stops }: GenerateRequest,
    { stop, finishReason, responseIds }: ParsedReply,
    tellsStop: boolean,
  ): StopCause | null {
    if (finishReason !== 'stop' || tellsStop || stops.length === 0) return stop;
    return this.ends.closeIds.has(responseIds.at(-1) ?? -1) ? stop : null;
  }

  private ended(
    { stop: stops }: GenerateRequest,
    message: AssistantMessage,
    ending: StopCause | null,
    finishReason: string,
  ): { message: AssistantMessage; stop: StopCause | null } {
    if (finishReason !== 'stop' || ending?.kind === 'token') return { message, stop: ending };
    const found = cutAtStop(message, ending === null ? stops : [ending.text]);
    if (found === null) return { message, stop: ending };
    return { message: found.message, stop: { kind: 'string', text: found.text } };
  }
}

/** `newSpans` are the versions of what was sampled now, counted from its own beginning; null: the server does not tell. */
export type TokenReply = { readonly reply: ParsedReply; readonly newSpans: readonly VersionSpan[] | null };

type SentIds = { readonly text: Buffer; readonly parts: readonly Int32Array[]; readonly count: number };

type Generated = {
  /** Its message is still empty. */
  readonly sampled: ParsedReply;
  /** The reply has a field for what stopped it, be it null. */
  readonly tellsStop: boolean;
};

/** Reads a 200 reply of `/inference/v1/generate`. Throws `engine_error`. */
function parseGenerated(body: Buffer, request: TokenRequest, sent: SentIds, context: ReplyContext): Generated {
  const compared = compareIds(body, 'prompt_token_ids', sent.text, sent.parts);
  const logprobs = scanLogprobs(body);
  const reply = shaped(replySchema, parseReplyJson(body, compared && { ids: NO_IDS, ...compared }, logprobs));
  refuseForeign({ id: reply.request_id, model: reply.model }, context);
  refuseOtherPrompt(reply, compared, sent);
  const choice = reply.choices[0];
  const responseIds = idsOf(choice?.token_ids, null, 'token_ids');
  const usage = reply.usage ?? { prompt_tokens: sent.count, completion_tokens: responseIds.length };
  const sampled = recordable({
    // The count of what was sent is what the usage is held against; the ids were compared.
    promptIds: sent.parts.length === 1 ? request.prompt.ids : new Int32Array(sent.count),
    responseIds,
    logprobs: logprobsIn(choice?.logprobs?.content, logprobs),
    versions: choice?.weight_versions,
    message: NO_MESSAGE,
    finishReason: choice?.finish_reason ?? '',
    stopReason: choice?.stop_reason,
    usage,
    routedExperts: routedExpertsOf(choice?.routed_experts, sent.count + responseIds.length),
  });
  return { sampled, tellsStop: choice?.stop_reason !== undefined };
}

function refuseOtherPrompt(reply: ForeignReply, compared: ComparedIds | null, sent: SentIds): void {
  const { prompt_token_ids: echoed, usage } = reply;
  const told = compared !== null || Array.isArray(echoed);
  if (told) {
    const difference = compared === null ? firstDifference(echoed as number[], sent.parts) : compared.difference;
    if (difference === null) return;
    throw refusal(`prompt_token_ids are not the ${sent.count} ids that were sent, from index ${difference} on`);
  }
  if (echoed !== null && echoed !== undefined) throw refusal('prompt_token_ids is not an array of ids');
  if (usage === null || usage === undefined) {
    const what = 'neither prompt_token_ids nor usage is there, so that nobody knows what it was prompted by';
    throw refusal(what, undefined, { unverifiable: true });
  }
}

/** A later part behind what was begun; positions of the later one are moved. Version spans of the later one are not told here. */
function joined(begun: SampledTokens, later: ParsedReply): ParsedReply {
  const at = begun.responseIds.length;
  const responseIds = new Int32Array(at + later.responseIds.length);
  responseIds.set(begun.responseIds);
  responseIds.set(later.responseIds, at);
  const responseLogprobs = new Float32Array(responseIds.length);
  responseLogprobs.set(begun.responseLogprobs);
  responseLogprobs.set(later.responseLogprobs, at);
  return {
    ...later,
    responseIds,
    responseLogprobs,
    routedExperts: joinedRouting(begun.routedExperts, later.routedExperts),
  };
}

/** What was begun is no part of the prompt, though the later call was prompted by it. */
function usageOf({ usage }: ParsedReply, promptTokens: number, completionTokens: number): Usage {
  const cached = usage.cached_tokens;
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    cached_tokens: cached === null ? null : Math.min(cached, promptTokens),
  };
}

/** The spans of what was begun and, behind them, of what came later; neighbours of one version are one. */
export function joinedSpans(begun: SampledTokens | null, later: readonly VersionSpan[]): VersionSpan[] {
  if (begun === null) return [...later];
  const at = begun.responseIds.length;
  const moved = later.map(({ version, start, end }) => ({ version, start: start + at, end: end + at }));
  const spans: VersionSpan[] = [];
  for (const span of [...begun.versionSpans, ...moved]) {
    const last = spans.at(-1);
    if (last !== undefined && last.version === span.version) spans[spans.length - 1] = { ...last, end: span.end };
    else spans.push(span);
  }
  return spans;
}
