import type { Dialect } from '../dialect.ts';
import { openaiChat } from '../openai_chat/dialect.ts';
import { EVENT_STREAM } from '../server-sent.ts';
import { encodeResponsesError, encodeResponsesStreamError } from './failure.ts';
import { encodeResponse } from './reply.ts';
import { parseResponsesCount, parseResponsesRequest } from './request.ts';
import { openResponsesStream, RESPONSES_HEARTBEAT } from './stream.ts';

/** OpenAI Responses. Nothing is stored for later retrieval, so there are no paths for stored responses or conversations. */
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
  // The official client's accumulator fails on any event before `response.created`.
  framing: () => ({ contentType: EVENT_STREAM, heartbeat: RESPONSES_HEARTBEAT, startsFirst: true }),
  encodeModels: openaiChat.encodeModels,
  encodeModel: openaiChat.encodeModel,
  encodeCount: (tokens) => JSON.stringify({ object: 'response.input_tokens', input_tokens: tokens }),
  encodeError: encodeResponsesError,
  encodeStreamError: encodeResponsesStreamError,
};
