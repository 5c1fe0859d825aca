import { FloeError, parseAs } from '@floe-rl/core';
import { z } from 'zod';
import type { SimContext } from '../context.ts';
import type { Exchange } from '../http.ts';
import { forcesToolCall } from '../requested-constraint.ts';
import { VisibleText } from '../visible-text.ts';
import { tokenName } from '../wire-choice.ts';
import { chatParser } from './chat-task.ts';
import { checkModel, vllmError } from './context.ts';
import { derenderChunk } from './derender-chunk.ts';
import { wireMessage } from './reply-fields.ts';
import { type ChatRequest, chatRequestSchema, parseRequest } from './request.ts';

const idsSchema = z.array(z.int().min(0));

const candidateFields = {
  token_id: z.int().min(0).optional(),
  token: z
    .string()
    .regex(/^token_id:\d+$/)
    .optional(),
  logprob: z.number(),
};
const logprobSchema = z.looseObject({
  ...candidateFields,
  top_logprobs: z.array(z.looseObject(candidateFields)).default([]),
});

const choiceSchema = z.looseObject({
  index: z.int().min(0),
  token_ids: idsSchema.nullish(),
  logprobs: z.looseObject({ content: z.array(logprobSchema).nullish() }).nullish(),
  finish_reason: z.string().nullish(),
});
type GeneratedChoice = z.infer<typeof choiceSchema>;

const derenderSchema = z.looseObject({
  stream: z.literal(false).nullish(),
  model: z.string().nullish(),
  generate_response: z.looseObject({
    request_id: z.string().nullish(),
    output_mode: z.literal('tokens').default('tokens'),
    choices: z.array(choiceSchema).min(1),
    prompt_token_ids: idsSchema.nullish(),
  }),
  prompt_tokens: z.int().min(0).nullish(),
  prompt_token_ids: idsSchema.nullish(),
  chat_request: z.unknown().optional(),
});

/**
 * Handles `POST /v1/chat/completions/derender`: converts sampled ids to a chat completion with the server's own parsers. With the setting
 * `derenderEnd: kept`, the text contains the token that ended the turn, and the stop string, as in vLLM. The chat route leaves both of them
 * out of the text.
 */
export async function derenderChat(exchange: Exchange, context: SimContext): Promise<void> {
  const body = await exchange.body();
  if (typeof body === 'object' && body !== null && 'stream' in body && body.stream === true) {
    if (context.config.derenderStream) derenderChunk(exchange, context, body);
    else exchange.json(501, vllmError('Streaming derender is not supported.', 501));
    return;
  }
  const request = parseAs(derenderSchema, body, 'derender request');
  checkModel(context, request.model);
  if (request.chat_request === undefined || request.chat_request === null) {
    throw new FloeError(
      'engine_rejected',
      'chat_request is required when a tool or reasoning parser is configured because plain detokenization would leak raw parser markup into content.',
    );
  }
  const chat = parseRequest(context, chatRequestSchema, request.chat_request, 'chat_request');
  const { generate_response: response } = request;
  const choices = response.choices.map((choice) => derenderChoice(exchange, context, chat, choice));
  const prompt = request.prompt_tokens ?? 0;
  const completion = response.choices.reduce((sum, { token_ids: ids }) => sum + (ids?.length ?? 0), 0);
  exchange.json(200, {
    id: response.request_id ?? '',
    object: 'chat.completion',
    created: Math.floor(context.clock.nowMs() / 1000),
    model: context.servedModel.name,
    choices,
    usage: { prompt_tokens: prompt, total_tokens: prompt + completion, completion_tokens: completion },
    prompt_logprobs: null,
    kv_transfer_params: null,
  });
}

function derenderChoice(exchange: Exchange, context: SimContext, chat: ChatRequest, choice: GeneratedChoice): object {
  const ids = choice.token_ids ?? [];
  if (ids.length === 0) {
    throw new FloeError('engine_rejected', `choice ${choice.index} has empty or null token_ids`);
  }
  const unknown = ids.find((id) => !context.vocabulary.has(id));
  if (unknown !== undefined) throw new FloeError('engine_rejected', `Token id ${unknown} is out of vocabulary`);
  const parser = chatParser(context, chat, context.toolCallIds.forReply(exchange.header('x-session-id'), false));
  const { text, stopReason } = visibleText(context, chat, choice, ids);
  parser.push(text.finish());
  return {
    index: choice.index,
    message: wireMessage(chat, parser.parsed, forcesToolCall(chat)),
    logprobs: choice.logprobs?.content ? { content: choice.logprobs.content.map(logprobResolver(context)) } : null,
    // The finish reason is copied from the request. A tool call in the message does not change it to `tool_calls`.
    finish_reason: choice.finish_reason ?? null,
    stop_reason: stopReason,
  };
}

/**
 * Returns the choice's text. When `derenderEnd` is `hidden`, also returns the stop string or stop token id that ended the text; otherwise
 * `stopReason` is `null`.
 */
function visibleText(
  context: SimContext,
  chat: ChatRequest,
  choice: GeneratedChoice,
  ids: readonly number[],
): { readonly text: VisibleText; readonly stopReason: number | string | null } {
  const { vocabulary, config } = context;
  const hidesEnd = config.derenderEnd === 'hidden' && choice.finish_reason === 'stop';
  const includeStop = chat.include_stop_str_in_output ?? false;
  const stopStrings = [chat.stop ?? []].flat().filter((part) => part !== '');
  const stop = hidesEnd ? stopStrings : [];
  const text = new VisibleText(vocabulary, { stop, includeStop, skipSpecial: false });
  const last = ids.at(-1) as number;
  const { imEnd, endOfText } = vocabulary.special;
  const isStopToken = (chat.stop_token_ids ?? []).includes(last);
  const dropsLast = hidesEnd && (isStopToken || last === imEnd || last === endOfText);
  for (const id of dropsLast && !(isStopToken && includeStop) ? ids.slice(0, -1) : ids) {
    if (text.stop === null) text.push(id);
  }
  return { text, stopReason: text.stop ?? (hidesEnd && isStopToken ? last : null) };
}

type Candidate = {
  readonly token_id?: number | undefined;
  readonly token?: string | undefined;
  readonly logprob: number;
};

/** Returns a function that converts logprob entries with ids to entries with the tokens' text. */
function logprobResolver({ vocabulary }: SimContext): (entry: z.infer<typeof logprobSchema>) => object {
  const resolved = ({ token_id: given, token, logprob }: Candidate): object => {
    const id = given ?? Number(token?.slice('token_id:'.length));
    if (!vocabulary.has(id)) throw new FloeError('engine_rejected', `logprobs: token id ${id} is out of vocabulary`);
    return { token: tokenName(vocabulary, id, false), logprob, bytes: [...vocabulary.bytes(id)] };
  };
  return (entry) => ({ ...resolved(entry), top_logprobs: entry.top_logprobs.map(resolved) });
}
