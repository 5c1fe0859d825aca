import type { Dialect } from '../dialect.ts';
import {
  encodeMessagesError,
  encodeMessagesReply,
  encodeMessagesStream,
  encodeMessagesStreamError,
  MESSAGES_HEARTBEAT,
} from './reply.ts';
import { parseMessagesRequest } from './request.ts';

/** Anthropic Messages. Claude Code probes `/` or `/api/hello` before its first call. */
export const anthropic: Dialect = {
  name: 'anthropic',
  routes: [
    { method: 'POST', path: '/v1/messages', kind: 'generate' },
    { method: 'POST', path: '/v1/messages/count_tokens', kind: 'count_tokens' },
    { method: 'GET', path: '/v1/models', kind: 'models' },
    { method: 'HEAD', path: '/', kind: 'probe' },
    { method: 'HEAD', path: '/api/hello', kind: 'probe' },
  ],
  parseRequest: parseMessagesRequest,
  encodeReply: encodeMessagesReply,
  encodeStream: encodeMessagesStream,
  heartbeat: MESSAGES_HEARTBEAT,
  encodeModels: (model) =>
    JSON.stringify({
      data: [{ type: 'model', id: model, display_name: model, created_at: '1970-01-01T00:00:00Z' }],
      has_more: false,
      first_id: model,
      last_id: model,
    }),
  encodeCount: (tokens) => JSON.stringify({ input_tokens: tokens }),
  encodeError: encodeMessagesError,
  encodeStreamError: encodeMessagesStreamError,
};
