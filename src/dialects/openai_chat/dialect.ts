import type { Dialect } from '../dialect.ts';
import { CHAT_HEARTBEAT, encodeChatError, encodeChatReply, encodeChatStream, encodeChatStreamError } from './reply.ts';
import { parseChatRequest } from './request.ts';

/** OpenAI Chat Completions. Base URLs with and without `/v1` are in use, so both paths are served. */
export const openaiChat: Dialect = {
  name: 'openai_chat',
  routes: [
    { method: 'POST', path: '/v1/chat/completions', kind: 'generate' },
    { method: 'POST', path: '/chat/completions', kind: 'generate' },
    { method: 'GET', path: '/v1/models', kind: 'models' },
    { method: 'GET', path: '/models', kind: 'models' },
  ],
  parseRequest: parseChatRequest,
  encodeReply: encodeChatReply,
  encodeStream: encodeChatStream,
  heartbeat: CHAT_HEARTBEAT,
  encodeModels: (model, maxModelLen) =>
    JSON.stringify({
      object: 'list',
      data: [
        {
          id: model,
          object: 'model',
          created: 0,
          owned_by: 'floe',
          ...(maxModelLen === null ? {} : { max_model_len: maxModelLen }),
        },
      ],
    }),
  encodeCount: (tokens) => JSON.stringify({ input_tokens: tokens }),
  encodeError: encodeChatError,
  encodeStreamError: encodeChatStreamError,
};
