import { z } from 'zod';
import { parseAs } from '../../core/parse.ts';
import type { Exchange } from '../http.ts';
import { chatPromptIds } from './chat.ts';
import { checkModel, type VllmContext } from './context.ts';
import { tokenizeChatSchema } from './request.ts';

const tokenizePromptSchema = z.looseObject({
  model: z.string().nullish(),
  prompt: z.string(),
  return_token_strs: z.boolean().nullish(),
});

const detokenizeSchema = z.object({ model: z.string().nullish(), tokens: z.array(z.int().min(0)) });

/** POST /tokenize: a plain prompt, or messages through the chat template. */
export async function tokenize(exchange: Exchange, context: VllmContext): Promise<void> {
  const body = await exchange.body();
  const isChat = typeof body === 'object' && body !== null && 'messages' in body;
  let ids: number[];
  let asStrings: boolean;
  if (isChat) {
    const request = parseAs(tokenizeChatSchema, body, 'tokenize request');
    checkModel(context, request.model);
    ids = chatPromptIds(context, request);
    asStrings = request.return_token_strs ?? false;
  } else {
    const request = parseAs(tokenizePromptSchema, body, 'tokenize request');
    checkModel(context, request.model);
    ids = context.vocabulary.encode(request.prompt);
    asStrings = request.return_token_strs ?? false;
  }
  exchange.json(200, {
    count: ids.length,
    max_model_len: context.engine.options.maxModelLen,
    tokens: ids,
    token_strs: asStrings ? ids.map((id) => context.vocabulary.decode([id])) : null,
  });
}

/** POST /detokenize */
export async function detokenize(exchange: Exchange, context: VllmContext): Promise<void> {
  const request = parseAs(detokenizeSchema, await exchange.body(), 'detokenize request');
  checkModel(context, request.model);
  exchange.json(200, { prompt: context.vocabulary.decode(request.tokens) });
}
