import type { Dialect } from '../dialect.ts';
import { EVENT_STREAM } from '../server-sent.ts';
import {
  encodeMessagesError,
  encodeMessagesReply,
  encodeMessagesStreamError,
  MESSAGES_HEARTBEAT,
  openMessagesStream,
} from './reply.ts';
import { parseMessagesCount, parseMessagesRequest } from './request.ts';

/** Anthropic Messages. Claude Code probes `/` or `/api/hello` before its first call. */
export const anthropic: Dialect = {
  name: 'anthropic',
  routes: [
    { method: 'POST', path: '/v1/messages', kind: 'generate' },
    { method: 'POST', path: '/messages', kind: 'generate' },
    { method: 'POST', path: '/v1/messages/count_tokens', kind: 'count_tokens' },
    { method: 'GET', path: '/v1/models', kind: 'models' },
    { method: 'GET', path: '/v1/models/{model}', kind: 'model' },
    { method: 'HEAD', path: '/', kind: 'probe' },
    { method: 'HEAD', path: '/api/hello', kind: 'probe' },
  ],
  parseRequest: parseMessagesRequest,
  parseCount: parseMessagesCount,
  encodeReply: encodeMessagesReply,
  openStream: openMessagesStream,
  framing: () => ({ contentType: EVENT_STREAM, heartbeat: MESSAGES_HEARTBEAT }),
  encodeModels: (model) =>
    JSON.stringify({
      data: [modelObject(model)],
      has_more: false,
      first_id: model,
      last_id: model,
    }),
  encodeModel: (model) => JSON.stringify(modelObject(model)),
  encodeCount: (tokens) => JSON.stringify({ input_tokens: tokens }),
  encodeError: encodeMessagesError,
  encodeStreamError: encodeMessagesStreamError,
};

function modelObject(model: string): object {
  return { type: 'model', id: model, display_name: model, created_at: '1970-01-01T00:00:00Z' };
}
