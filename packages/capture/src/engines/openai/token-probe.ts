import { FloeError } from '@floe-rl/core';
import type { EngineSpec } from '@floe-rl/core/schema';
import { IdScanner } from '../chat/reply-scan.ts';
import type { EngineServer } from '../engine-server.ts';
import {
  firstTopLogprobs,
  PROBE_TOP_LOGPROBS,
  type ProbedLogprobs,
  probeLogprobs,
  type TopLogprobs,
  topLogprobsSchema,
} from '../logprobs-probe.ts';
import { parseTokenReply } from './reply.ts';
import type { TokenFields } from './request.ts';

const CHAT_PATH = '/v1/chat/completions';

/** Time limit of one request of the probe. */
const PROBE_TIMEOUT_MS = 30_000;

/** The fields to request, in the order in which they are tried. When the API refuses a request, the next entry is tried. */
const FIELD_SETS: readonly TokenFields[] = [
  { return_token_ids: true, return_prompt_token_ids: true, logprobs: true },
  { return_token_ids: true, logprobs: true },
];

/** A message whose reply a model can predict, so that the log-probabilities of the likely tokens differ much. */
const PREDICTABLE = { role: 'user', content: 'Say yes.' };

/** How an API returns token ids and log-probabilities. */
export type TokenSupport = {
  readonly fields: TokenFields;
  readonly logprobs: ProbedLogprobs;
  /** Name of the model in the probe's reply; `null` when it had none. */
  readonly model: string | null;
};

/** The result of a probe: how the API returns token ids, or why it returns none. */
export type TokenProbe = TokenSupport | { readonly fields: null; readonly reason: string };

/**
 * Samples one token to find out whether an API returns token ids and log-probabilities that can be trained on. If it does, two further
 * tokens show the mode of the log-probabilities. Rejects when the server cannot be reached, fails, or refuses the API key.
 */
export async function probeTokens(server: EngineServer, spec: EngineSpec, model: string): Promise<TokenProbe> {
  let reason = '';
  for (const fields of FIELD_SETS) {
    try {
      const name = await modelOfTokenReply(server, model, fields);
      const logprobs = await probeLogprobs(spec.logprobs_mode, (temperature) => topAt(server, model, temperature));
      return { fields, logprobs, model: name };
    } catch (error) {
      if (!isAnswer(error)) throw error;
      reason = error.message;
      if (error.code !== 'engine_rejected') break;
    }
  }
  return { fields: null, reason };
}

/** Requests a reply with token ids and returns the name of its model. Rejects when the reply lacks fields that are needed for training. */
function modelOfTokenReply(server: EngineServer, model: string, fields: TokenFields): Promise<string | null> {
  const body = JSON.stringify({ model, messages: [PREDICTABLE], max_tokens: 1, stream: false, ...fields });
  return server.withDeadline(PROBE_TIMEOUT_MS, async (signal) => {
    const reply = await server.post(CHAT_PATH, body, null, signal);
    const context = { sessionId: '', models: null, scanner: new IdScanner(), stop: [] };
    return parseTokenReply(await reply.read(), context).model;
  });
}

function topAt(server: EngineServer, model: string, temperature: number): Promise<TopLogprobs> {
  const likely = { logprobs: true, top_logprobs: PROBE_TOP_LOGPROBS };
  const body = JSON.stringify({ model, messages: [PREDICTABLE], max_tokens: 1, stream: false, temperature, ...likely });
  return server.withDeadline(PROBE_TIMEOUT_MS, async (signal) =>
    firstTopLogprobs(await server.call(CHAT_PATH, body, null, topLogprobsSchema, signal)),
  );
}

/**
 * Whether the error shows what the API supports: the API refused the request, or its reply lacks a field. Other errors show only that the API
 * could not be used at that time.
 */
function isAnswer(error: unknown): error is FloeError {
  if (!FloeError.is(error) || error.details.broken_off === true) return false;
  return error.code === 'engine_rejected' || (error.code === 'engine_error' && error.details.status === undefined);
}
