import type { Dialect } from '../dialect.ts';
import { clientStatus, openaiErrorObject } from '../errors.ts';
import { openaiChat } from '../openai_chat/dialect.ts';
import { EVENT_STREAM } from '../reply-stream.ts';
import { encodeResponse } from './reply.ts';
import { parseResponsesCount, parseResponsesRequest } from './request.ts';
import { openResponsesStream } from './stream.ts';

/**
 * The dialect of OpenAI's Responses API. There are no routes for stored responses or conversations, because floe does not store them for
 * retrieval by clients.
 */
export const openaiResponses: Dialect = {
  name: 'openai_responses',
  routes: [
    { method: 'POST', path: '/v1/responses', kind: 'generate' },
    { method: 'POST', path: '/responses', kind: 'generate' },
    { method: 'POST', path: '/v1/responses/input_tokens', kind: 'count_tokens' },
    { method: 'POST', path: '/responses/input_tokens', kind: 'count_tokens' },
  ],
  parseRequest: parseResponsesRequest,
  parseCount: parseResponsesCount,
  encodeReply: encodeResponse,
  openStream: openResponsesStream,
  streamType: () => EVENT_STREAM,
  encodeModels: openaiChat.encodeModels,
  encodeModel: openaiChat.encodeModel,
  encodeCount: (tokens) => JSON.stringify({ object: 'response.input_tokens', input_tokens: tokens }),
  encodeError: (error) => ({ status: clientStatus(error), body: JSON.stringify(openaiErrorObject(error)) }),
};
