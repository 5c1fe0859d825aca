import type { EngineSpec } from '../../schema/index.ts';
import { EngineServer } from '../engine-server.ts';

/** SGLang has no code for an overlong prompt; only the wording of its three checks tells. */
const CONTEXT_WORDING =
  /longer than the model's context length|maximum context length|exceeds the maximum allowed length/i;

/** The HTTP side of one SGLang server. */
export function sglangServer(spec: EngineSpec): EngineServer {
  return new EngineServer(spec, {
    isOverflow: ({ message }) => CONTEXT_WORDING.test(message),
    // Routers keep the calls of a session together by its key.
    headersOf: ({ sessionId }) => ({ 'x-smg-routing-key': sessionId, 'x-session-id': sessionId }),
  });
}
