import { parseAs } from '@floe-rl/core';
import { z } from 'zod';
import type { SimContext } from '../context.ts';
import type { Exchange } from '../http.ts';
import { shiftedIds } from '../wire-choice.ts';
import { chatPromptIds } from './chat-task.ts';
import { checkModel } from './context.ts';
import { parseRequest, tokenizeChatSchema } from './request.ts';

const tokenizePromptSchema = z.looseObject({
  model: z.string().nullish(),
  prompt: z.string(),
  return_token_strs: z.boolean().nullish(),
});

const detokenizeSchema = z.object({ model: z.string().nullish(), tokens: z.array(z.int().min(0)) });

/** Handles `POST /tokenize`: replies with the ids of a plain prompt, or of messages rendered by the chat template. */
export async function tokenize(exchange: Exchange, context: SimContext): Promise<void> {
  const body = await exchange.body();
  const isChat = typeof body === 'object' && body !== null && 'messages' in body;
  let ids: number[];
  let withStrings: boolean;
  if (isChat) {
    const request = parseRequest(context, tokenizeChatSchema, body, 'tokenize request');
    checkModel(context, request.model);
    ids = chatPromptIds(context, request);
    withStrings = request.return_token_strs ?? false;
  } else {
    const request = parseRequest(context, tokenizePromptSchema, body, 'tokenize request');
    checkModel(context, request.model);
    ids = context.vocabulary.encode(request.prompt);
    withStrings = request.return_token_strs ?? false;
  }
  exchange.json(200, {
    count: ids.length,
    max_model_len: context.engine.options.maxModelLen,
    tokens: reportedIds(exchange, context, ids),
    token_strs: withStrings ? ids.map((id) => context.vocabulary.decode([id])) : null,
  });
}

/** Returns the ids that the server reports. Under the fault `tokenizer_mismatch` these are the ids of another tokenizer. */
export function reportedIds(exchange: Exchange, context: SimContext, ids: readonly number[]): readonly number[] {
  const plan = context.faults.plan(exchange.header('x-session-id'), 'tokenizing');
  return plan.has('tokenizer_mismatch') ? shiftedIds(context.vocabulary, ids) : ids;
}

/** Handles `POST /detokenize`: replies with the text of token ids. Ids outside the vocabulary are skipped. */
export async function detokenize(exchange: Exchange, context: SimContext): Promise<void> {
  const request = parseAs(detokenizeSchema, await exchange.body(), 'detokenize request');
  checkModel(context, request.model);
  exchange.json(200, { prompt: context.vocabulary.decode(request.tokens.filter((id) => context.vocabulary.has(id))) });
}
