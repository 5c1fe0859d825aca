import { FloeError, parseAs } from '@floe-rl/core';
import { z } from 'zod';
import type { Exchange } from '../http.ts';
import { shiftedIds } from '../wire-choice.ts';
import { chatPromptIds } from './chat.ts';
import { checkParser, parseCalls, separateReasoning, toolNames } from './reply-text.ts';
import { checkFields, checkIds, conversationFields, sessionIdOf } from './request.ts';
import type { SglangState } from './state.ts';

const tokenizeSchema = z.looseObject({
  ...conversationFields,
  model: z.string().nullish(),
  session_id: z.string().nullish(),
  messages: conversationFields.messages.nullish(),
  prompt: z.string('batches are not supported by the simulated engine').nullish(),
});

const detokenizeSchema = z.looseObject({
  model: z.string().nullish(),
  tokens: z.array(z.int('batches are not supported by the simulated engine').min(0)),
  skip_special_tokens: z.boolean().nullish(),
});

const parseCallSchema = z.looseObject({
  text: z.string(),
  tools: z.array(z.unknown()),
  tool_call_parser: z.string(),
});

const separateSchema = z.looseObject({ text: z.string(), reasoning_parser: z.string() });

/**
 * Handles `POST /tokenize` and `POST /v1/tokenize`: replies with the ids of a plain prompt, or of a conversation as a chat completion
 * renders it.
 */
export async function tokenize(exchange: Exchange, state: SglangState): Promise<void> {
  const request = parseAs(tokenizeSchema, await exchange.body(), 'tokenize request');
  checkFields(state, request, tokenizeSchema.shape);
  const { vocabulary, faults, config } = state.context;
  const { messages, prompt } = request;
  const hasMessages = messages !== undefined && messages !== null;
  const hasPrompt = prompt !== undefined && prompt !== null;
  if (hasMessages === hasPrompt) {
    throw new FloeError('engine_rejected', "Exactly one of 'prompt' or 'messages' must be provided.");
  }
  const ids = hasMessages ? chatPromptIds(state.context, { ...request, messages }) : vocabulary.encode(prompt ?? '');
  const plan = faults.plan(sessionIdOf(exchange, request), 'tokenizing');
  const reported = plan.has('tokenizer_mismatch') ? shiftedIds(vocabulary, ids) : ids;
  exchange.json(200, { tokens: reported, count: reported.length, max_model_len: config.maxModelLen });
}

/** Handles `POST /detokenize` and `POST /v1/detokenize`. Turn delimiters are left out of the text unless the request demands them. */
export async function detokenize(exchange: Exchange, state: SglangState): Promise<void> {
  const request = parseAs(detokenizeSchema, await exchange.body(), 'detokenize request');
  checkFields(state, request, detokenizeSchema.shape);
  const ids = checkIds(state, request.tokens);
  const text = state.context.vocabulary.decode(ids, { skipSpecial: request.skip_special_tokens ?? true });
  exchange.json(200, { text });
}

/** Handles `POST /parse_function_call`. */
export async function parseFunctionCall(exchange: Exchange): Promise<void> {
  const request = parseAs(parseCallSchema, await exchange.body(), 'parse request');
  checkParser('tool_call_parser', request.tool_call_parser);
  const { text, calls } = parseCalls(request.text, toolNames(request.tools));
  exchange.json(200, {
    normal_text: text,
    calls: calls.map(({ name, parameters }, index) => ({ tool_index: index, name, parameters })),
  });
}

/**
 * Handles `POST /separate_reasoning`. The route does not know the prompt, so it recognises thinking only when the text itself opens a
 * thinking block.
 */
export async function separateReasoningRoute(exchange: Exchange): Promise<void> {
  const request = parseAs(separateSchema, await exchange.body(), 'parse request');
  checkParser('reasoning_parser', request.reasoning_parser);
  const { reasoning, text } = separateReasoning(request.text, false);
  exchange.json(200, { reasoning_text: reasoning, text });
}
