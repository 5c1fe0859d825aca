import type { Dialect } from '../dialect.ts';
import { clientStatus } from '../errors.ts';
import { EVENT_STREAM } from '../reply-stream.ts';
import { errorObject, lostThreadOf } from './errors.ts';
import { encodeMessagesReply } from './reply.ts';
import { parseMessagesCount, parseMessagesRequest } from './request.ts';
import { openMessagesStream } from './stream.ts';

/**
 * The dialect of Anthropic's Messages API. The paths `/` and `/api/hello` are served because Claude Code sends a HEAD request to one of
 * them before its first call.
 */
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
  streamType: () => EVENT_STREAM,
  encodeModels: (model) =>
    JSON.stringify({
      data: [modelObject(model)],
      has_more: false,
      first_id: model,
      last_id: model,
    }),
  encodeModel: (model) => JSON.stringify(modelObject(model)),
  encodeCount: (tokens) => JSON.stringify({ input_tokens: tokens }),
  encodeError(error) {
    const status = lostThreadOf(error) === null ? clientStatus(error) : 404;
    return { status, body: JSON.stringify(errorObject(error)) };
  },
};

function modelObject(model: string): object {
  return { type: 'model', id: model, display_name: model, created_at: '1970-01-01T00:00:00Z' };
}
