import { parseAs } from '@floe-rl/core';
import { type EngineChange, engineSpecSchema } from '@floe-rl/core/schema';
import type { RolloutContext } from '../context.ts';
import {
  type CommittedChange,
  pauseEngines,
  registerEngine,
  removeEngines,
  resumeEngines,
  setPolicyVersion,
  waitUntilApplied,
} from '../engines/changes.ts';
import { enginesStatus } from '../engines/directory.ts';
import type { Handlers } from './handler.ts';

/**
 * How long the routes that are compatible with ProRL Agent's server wait until all nodes have applied a change of the engines. Their
 * callers cannot specify it. ProRL Agent answers at once, also for an address that is down, so its clients expect an answer within a
 * second. A node applies a change within half a second when the engine responds; the reply names the nodes that have not.
 */
const PRORL_WAIT_SECONDS = 0.75;

/** Creates the handlers of the routes for trainers that manage the engines of their policy. */
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
  const apply = (committed: CommittedChange, waitSeconds: number, disconnected: AbortSignal): Promise<EngineChange> =>
    waitUntilApplied(context, committed, waitSeconds * 1000, disconnected);
  return {
    listEngines: () => enginesStatus(context),
    addEngine: async ({ body, query, disconnected }) =>
      apply(await registerEngine(context, body, query.replace), query.wait, disconnected),
    removeEngine: async ({ id, query, disconnected }) =>
      apply(await removeEngines(context, id), query.wait, disconnected),
    clearEngines: async ({ query, disconnected }) =>
      apply(await removeEngines(context, null), query.wait, disconnected),
    pauseEngines: async ({ body, query, disconnected }) =>
      apply(await pauseEngines(context, body.mode, body.while_paused), query.wait, disconnected),
    resumeEngines: async ({ query, disconnected }) => apply(await resumeEngines(context), query.wait, disconnected),
    setEngineVersion: async ({ body, query, disconnected }) =>
      apply(await setPolicyVersion(context, body.version), query.wait, disconnected),
    addLlmServer: async ({ body, disconnected }) => {
      const spec = parseAs(engineSpecSchema, { base_url: baseUrlOf(body.address) }, 'address');
      const change = await apply(await registerEngine(context, spec), PRORL_WAIT_SECONDS, disconnected);
      return { status: 'ok', address: body.address, ...change };
    },
    clearLlmServer: async ({ disconnected }) => {
      const change = await apply(await removeEngines(context, null), PRORL_WAIT_SECONDS, disconnected);
      return { status: 'ok', ...change };
    },
  };
}

/**
 * Returns the base URL of an engine. Accepts `host:port` or a URL, like ProRL Agent, and removes the `/v1` of an OpenAI client's base URL.
 */
function baseUrlOf(address: string): string {
  const url = /^[a-z]+:\/\//i.test(address) ? address : `http://${address}`;
  return url.replace(/\/+$/, '').replace(/\/v1$/, '');
}
