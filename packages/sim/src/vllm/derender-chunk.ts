import { FloeError, parseAs } from '@floe-rl/core';
import { z } from 'zod';
import type { SimContext } from '../context.ts';
import type { Exchange } from '../http.ts';
import type { MessageDelta } from '../reply-parser.ts';
import { VisibleText } from '../visible-text.ts';
import { chatParser } from './chat-task.ts';
import { checkModel } from './context.ts';
import { wireDelta } from './reply-fields.ts';
import { chatRequestSchema, parseRequest } from './request.ts';

const idsSchema = z.array(z.int().min(0));

const stateSchema = z.looseObject({
  role_sent: z.boolean().default(false),
  output_token_ids: idsSchema.default([]),
  output_chunk_lens: z.array(z.int().min(1)).default([]),
  tools_streamed: z.boolean().default(false),
  last_tool_call_ids: z.array(z.string()).default([]),
});

const chunkSchema = z.looseObject({
  stream: z.literal(true),
  model: z.string().nullish(),
  generate_chunk: z.looseObject({
    request_id: z.string().nullish(),
    choices: z
      .array(
        z.looseObject({
          index: z.int().min(0),
          token_ids: idsSchema.nullish(),
          finish_reason: z.string().nullish(),
        }),
      )
      .max(1),
  }),
  stream_state: stateSchema.nullish(),
  prompt_token_ids: idsSchema.nullish(),
  chat_request: z.unknown().optional(),
});

/**
 * Handles `POST /v1/chat/completions/derender` with `stream: true`: parses the next ids of a reply as the chat route does in a stream. The
 * client sends the state that the previous reply returned. As in vLLM, each chunk gets a new parser, which first parses the earlier chunks.
 */
export function derenderChunk(exchange: Exchange, context: SimContext, body: unknown): void {
  const request = parseAs(chunkSchema, body, 'derender request');
  checkModel(context, request.model);
  if (request.chat_request === undefined || request.chat_request === null) throw missing('chat_request');
  if (request.prompt_token_ids === undefined || request.prompt_token_ids === null) throw missing('prompt_token_ids');
  const chat = parseRequest(context, chatRequestSchema, request.chat_request, 'chat_request');
  const state = stateSchema.parse(request.stream_state ?? {});
  const [choice] = request.generate_chunk.choices;
  const ids = choice?.token_ids ?? [];
  const unknown = [...state.output_token_ids, ...ids].find((id) => !context.vocabulary.has(id));
  if (unknown !== undefined) throw new FloeError('engine_rejected', `Token id ${unknown} is out of vocabulary`);
  const parser = chatParser(context, chat, context.toolCallIds.forReply(exchange.header('x-session-id'), false));
  const text = new VisibleText(context.vocabulary, { stop: [], includeStop: false, skipSpecial: false });
  const parsed = (chunk: readonly number[], isLast: boolean): MessageDelta => {
    for (const id of chunk) text.push(id);
    return parser.push(isLast ? text.finish() : text.release());
  };
  let at = 0;
  for (const length of state.output_chunk_lens) {
    parsed(state.output_token_ids.slice(at, at + length), false);
    at += length;
  }
  const delta = parsed(ids, (choice?.finish_reason ?? null) !== null);
  const role = state.role_sent ? {} : { role: 'assistant' };
  exchange.json(200, {
    chunk: {
      id: request.generate_chunk.request_id ?? '',
      object: 'chat.completion.chunk',
      created: Math.floor(context.clock.nowMs() / 1000),
      model: context.servedModel.name,
      choices:
        choice === undefined
          ? []
          : [
              {
                index: choice.index,
                delta: { ...role, ...wireDelta(chat, delta) },
                logprobs: null,
                finish_reason: choice.finish_reason ?? null,
              },
            ],
    },
    stream_state: {
      ...state,
      role_sent: true,
      output_token_ids: [...state.output_token_ids, ...ids],
      output_chunk_lens: ids.length === 0 ? state.output_chunk_lens : [...state.output_chunk_lens, ids.length],
      tools_streamed: state.tools_streamed || parser.hasShownCalls,
    },
  });
}

function missing(field: string): FloeError {
  return new FloeError('engine_rejected', `${field} is required when a tool or reasoning parser is configured.`);
}
