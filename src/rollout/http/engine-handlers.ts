import { parseAs } from '../../core/parse.ts';
import type { EngineChange } from '../../schema/index.ts';
import { engineSpecSchema } from '../../schema/index.ts';
import type { RolloutContext } from '../context.ts';
import {
  type CommittedChange,
  enginesStatus,
  pauseEngines,
  registerEngine,
  removeEngines,
  resumeEngines,
  setPolicyVersion,
  settled,
} from '../engines/changes.ts';
import type { Handlers } from './handler.ts';

/** ProRL Agent's callers do not say how long they wait. */
const PRORL_WAIT_SECONDS = 30;

/** What trainers call to say where their policy is served. */
export function engineHandlers(
  context: RolloutContext,
): Handlers<
  | 'listEngines'
  | 'addEngine'
  | 'removeEngine'
  | 'clearEngines'
  | 'pauseEngines'
  | 'resumeEngines'
  | 'setEngineVersion'
  | 'addLlmServer'
  | 'clearLlmServer'
> {
  const done = (committed: CommittedChange, waitSeconds: number, gone: AbortSignal): Promise<EngineChange> =>
    settled(context, committed, waitSeconds * 1000, gone);
  return {
    listEngines: () => enginesStatus(context),
    addEngine: async ({ body, query, gone }) =>
      done(await registerEngine(context, body, query.replace), query.wait, gone),
    removeEngine: async ({ id, query, gone }) => done(await removeEngines(context, id), query.wait, gone),
    clearEngines: async ({ query, gone }) => done(await removeEngines(context, null), query.wait, gone),
    pauseEngines: async ({ body, query, gone }) =>
      done(await pauseEngines(context, body.mode, body.while_paused), query.wait, gone),
    resumeEngines: async ({ query, gone }) => done(await resumeEngines(context), query.wait, gone),
    setEngineVersion: async ({ body, query, gone }) =>
      done(await setPolicyVersion(context, body.version), query.wait, gone),
    addLlmServer: async ({ body, gone }) => {
      const spec = parseAs(engineSpecSchema, { base_url: baseUrlOf(body.address) }, 'address');
      const change = await done(await registerEngine(context, spec), PRORL_WAIT_SECONDS, gone);
      return { status: 'ok', address: body.address, ...change };
    },
    clearLlmServer: async ({ gone }) => {
      const change = await done(await removeEngines(context, null), PRORL_WAIT_SECONDS, gone);
      return { status: 'ok', ...change };
    },
  };
}

/** `host:port` or a URL, as ProRL Agent takes either, without the `/v1` of an OpenAI client's base URL. */
function baseUrlOf(address: string): string {
  const url = /^[a-z]+:\/\//i.test(address) ? address : `http://${address}`;
  return url.replace(/\/+$/, '').replace(/\/v1$/, '');
}
