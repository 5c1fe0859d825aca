import type { EngineSpec } from '../../schema/index.ts';
import { EngineServer } from '../engine-server.ts';

/** vLLM has no code for an overlong prompt; before it named the parameter, only the wording told. */
const CONTEXT_WORDING = /maximum context length|maximum model length|max_model_len|longer than the maximum/i;
const CONTEXT_PARAM = 'input_tokens';

/** The HTTP side of one vLLM server. */
export function vllmServer(spec: EngineSpec): EngineServer {
  return new EngineServer(spec, {
    isOverflow: ({ param, message }) => param === CONTEXT_PARAM || CONTEXT_WORDING.test(message),
    headersOf: ({ completionId, sessionId }) => ({
      'x-request-id': completionId,
      // Routers send all calls of a session to the server that holds its prefix.
      'x-session-id': sessionId,
    }),
  });
}
