import type { Dialect } from '../dialect.ts';
import { clientStatus, openaiErrorObject } from '../errors.ts';
import { EVENT_STREAM } from '../reply-stream.ts';
import { encodeChatReply } from './reply.ts';
import { parseChatRequest } from './request.ts';
import { openChatStream } from './stream.ts';

/** The dialect of OpenAI's Chat Completions API. Clients use base URLs with and without `/v1`, so both forms of each path are served. */
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
  streamType: () => EVENT_STREAM,
  encodeModels: (model, maxModelLen) => JSON.stringify({ object: 'list', data: [modelObject(model, maxModelLen)] }),
  encodeModel: (model, maxModelLen) => JSON.stringify(modelObject(model, maxModelLen)),
  encodeCount: (tokens) => JSON.stringify({ input_tokens: tokens }),
  encodeError: (error) => ({ status: clientStatus(error), body: JSON.stringify(openaiErrorObject(error)) }),
};

function modelObject(model: string, maxModelLen: number | null): object {
  const length = maxModelLen === null ? {} : { max_model_len: maxModelLen };
  return { id: model, object: 'model', created: 0, owned_by: 'floe', ...length };
}
