import type { Dialect } from '../dialect.ts';
import { EVENT_STREAM } from '../server-sent.ts';
import { CHAT_HEARTBEAT, encodeChatError, encodeChatReply, encodeChatStreamError, openChatStream } from './reply.ts';
import { parseChatRequest } from './request.ts';

/** OpenAI Chat Completions. Base URLs with and without `/v1` are in use, so both paths are served. */
export const openaiChat: Dialect = {
  name: 'openai_chat',
  routes: [
    { method: 'POST', path: '/v1/chat/completions', kind: 'generate' },
    { method: 'POST', path: '/chat/completions', kind: 'generate' },
    { method: 'GET', path: '/v1/models', kind: 'models' },
    { method: 'GET', path: '/models', kind: 'models' },
    { method: 'GET', path: '/v1/models/{model}', kind: 'model' },
    { method: 'GET', path: '/models/{model}', kind: 'model' },
  ],
  parseRequest: parseChatRequest,
  parseCount: parseChatRequest,
  encodeReply: encodeChatReply,
  openStream: openChatStream,
  framing: () => ({ contentType: EVENT_STREAM, heartbeat: CHAT_HEARTBEAT }),
  encodeModels: (model, maxModelLen) => JSON.stringify({ object: 'list', data: [modelObject(model, maxModelLen)] }),
  encodeModel: (model, maxModelLen) => JSON.stringify(modelObject(model, maxModelLen)),
  encodeCount: (tokens) => JSON.stringify({ input_tokens: tokens }),
  encodeError: encodeChatError,
  encodeStreamError: encodeChatStreamError,
};

function modelObject(model: string, maxModelLen: number | null): object {
  const length = maxModelLen === null ? {} : { max_model_len: maxModelLen };
  return { id: model, object: 'model', created: 0, owned_by: 'floe', ...length };
}
