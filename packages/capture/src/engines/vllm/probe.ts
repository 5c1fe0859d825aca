import { asFloeError, type Clock } from '@floe-rl/core';
import type { EngineSpec, TemplateFacts } from '@floe-rl/core/schema';
import { z } from 'zod';
import { IdScanner, scanIds } from '../chat/reply-scan.ts';
import { type EngineServer, hasAnswered, jsonOf } from '../engine-server.ts';
import {
  firstTopLogprobs,
  PROBE_TOP_LOGPROBS,
  type ProbedLogprobs,
  probeLogprobs,
  type TopLogprobs,
  topLogprobsSchema,
} from '../logprobs-probe.ts';
import { probeTemplate, UNKNOWN_TEMPLATE } from '../template-probe.ts';
import { TokenCalls, type TurnEnds } from './generate.ts';
import { derender } from './message-reader.ts';
import { NO_PREVIEW, previewSupportOf } from './preview-probe.ts';
import { render } from './rendering.ts';
import { chatBody } from './request.ts';
import { capabilitiesOf, PROBE_REQUEST, readServerFacts, type ServerFacts } from './server-facts.ts';

/** Time limit of one probe request, such as a rendering of a short conversation. It is long because a busy server may answer late. */
const PROBE_TIMEOUT_MS = 30_000;

/**
 * Word that is converted to a message with and without a closing token. The difference between the messages shows how the server's parsers
 * treat that token.
 */
const PROBE_WORD = 'ok';

/** The properties of a server that are determined when it is connected and do not change afterwards. */
export type Profile = {
  readonly facts: ServerFacts;
  readonly template: TemplateFacts;
  /** Runs calls whose prompt is token ids; `null` when the server does not support them. */
  readonly tokens: TokenCalls | null;
  /** The mode of the log-probabilities; `null` when replies have none that can be recorded. */
  readonly logprobs: ProbedLogprobs | null;
  /** Sentences that state why the server lacks a property, in addition to the notes that follow from `facts`. */
  readonly notes: readonly string[];
};

/**
 * Determines the properties of a server. The measurement of the log-probabilities' mode samples one token in each of two calls, and
 * `readServerFacts` may sample tokens too. Nothing else is sampled. Rejects as `createVllmEngine` does.
 */
export async function probeServer(server: EngineServer, spec: EngineSpec, clock: Clock): Promise<Profile> {
  const facts = await readServerFacts(server, spec.model);
  const notes: string[] = [];
  /** Runs a probe that may fail. When the server refuses it, `failure` and the server's message are noted and `fallback` is returned. */
  const probed = async <T>(failure: string, fallback: T, probe: () => Promise<T>): Promise<T> => {
    try {
      return await probe();
    } catch (error) {
      if (!hasAnswered(error)) throw error;
      notes.push(`${failure}: ${error.message}`);
      return fallback;
    }
  };
  const template = await probed('its template cannot be probed', UNKNOWN_TEMPLATE, () => templateOf(server, facts));
  const { token_ids, token_input } = capabilitiesOf(facts);
  const logprobs = token_ids ? await logprobsOf(server, facts, spec) : null;
  if (token_input === 'none') return { facts, template, tokens: null, logprobs, notes };
  const tokens = await probed('its parsers cannot be used', null, async () => {
    const word = facts.routes.tokenize ? await probeWordIds(server, facts) : null;
    const ends = await turnEndsOf(server, facts, template.close_ids, word);
    const previews = await probed('replies to prompts of ids are not streamed', NO_PREVIEW, async () =>
      word === null
        ? NO_PREVIEW
        : server.withDeadline(PROBE_TIMEOUT_MS, (signal) =>
            previewSupportOf(server, facts, ends.closeIds, word, signal),
          ),
    );
    return new TokenCalls(server, facts, { ends, previews }, clock);
  });
  return { facts, template, tokens, logprobs, notes };
}

async function templateOf(server: EngineServer, facts: ServerFacts): Promise<TemplateFacts> {
  if (!facts.routes.render && !facts.routes.tokenize) return UNKNOWN_TEMPLATE;
  return probeTemplate((messageTexts, options) =>
    server.withDeadline(PROBE_TIMEOUT_MS, (signal) =>
      render(server, facts, { ...PROBE_REQUEST, messageTexts, ...options }, signal),
    ),
  );
}

/**
 * Determines whether the server's parsers show the token that closes a turn. Parsers that work on text show it. Parsers that work on ids do
 * not show it and need it in their input. Rejects when the parsers cannot parse the probe word.
 */
async function turnEndsOf(
  server: EngineServer,
  facts: ServerFacts,
  ids: readonly number[],
  word: Int32Array | null,
): Promise<TurnEnds> {
  const closeIds = new Set(ids);
  const [close] = ids;
  // The server's parsers might write the end-of-turn token into a message. Whether they do is unknown here, so the token is always removed
  // before the ids are parsed.
  if (word === null) return { closeIds, isCloseShown: true };
  const parsed = async (sampledIds: Int32Array): Promise<string> => {
    const { completionId, sessionId } = PROBE_REQUEST;
    const context = { completionId, sessionId, models: facts.modelNames, scanner: new IdScanner() };
    const options = { ...context, model: facts.model, includeReasoning: false };
    const sampled = { promptIds: new Int32Array(0), ids: sampledIds, finishReason: 'stop' };
    const message = await server.withDeadline(PROBE_TIMEOUT_MS, (signal) =>
      derender(server, PROBE_REQUEST, sampled, options, signal),
    );
    return JSON.stringify(message);
  };
  const alone = await parsed(word);
  if (close === undefined) return { closeIds, isCloseShown: true };
  return { closeIds, isCloseShown: (await parsed(Int32Array.of(...word, close))) !== alone };
}

/** Measures the mode of the log-probabilities. Resolves and rejects as {@link probeLogprobs} does. */
export function logprobsOf(server: EngineServer, facts: ServerFacts, spec: EngineSpec): Promise<ProbedLogprobs> {
  return probeLogprobs(spec.logprobs_mode, (temperature) => topLogprobsAt(server, facts, temperature));
}

/** A message whose reply a model can predict, so that the log-probabilities of the likely tokens differ much. */
const PREDICTABLE = '{"role":"user","content":"Say yes."}';

const pausedSchema = z.looseObject({ is_paused: z.boolean() });

/**
 * Samples one token at `temperature` and returns the log-probabilities of the likeliest tokens. Rejects with `unsupported` while the server is
 * paused, because a paused server does not answer. Also rejects with `unsupported` when the answer is incomplete or late.
 */
async function topLogprobsAt(server: EngineServer, facts: ServerFacts, temperature: number): Promise<TopLogprobs> {
  if (facts.routes.pause) {
    const { body } = await server.controlGet('/is_paused');
    if (pausedSchema.safeParse(jsonOf(body)).data?.is_paused === true) {
      throw server.error('unsupported', 'it is paused');
    }
  }
  const sampling = { ...PROBE_REQUEST.sampling, temperature };
  const request = { ...PROBE_REQUEST, messageTexts: [PREDICTABLE], sampling };
  const { model, unknownFields: unknown } = facts;
  const body = chatBody(request, { model, maxTokens: 1, stream: false, topLogprobs: PROBE_TOP_LOGPROBS, unknown });
  return server.withDeadline(PROBE_TIMEOUT_MS, async (signal) => {
    try {
      return firstTopLogprobs(await server.call('/v1/chat/completions', body, null, topLogprobsSchema, signal));
    } catch (error) {
      if (signal.aborted) {
        throw server.error('unsupported', `it did not sample a token within ${PROBE_TIMEOUT_MS / 1000} s`);
      }
      // The server has answered all earlier calls of the probe, so the engine can be used. The mode is measured after a later reply.
      throw hasAnswered(error) ? error : server.error('unsupported', asFloeError(error).message);
    }
  });
}

async function probeWordIds(server: EngineServer, { model }: ServerFacts): Promise<Int32Array | null> {
  const body = JSON.stringify({ model, prompt: PROBE_WORD, add_special_tokens: false });
  const reply = await server.controlPost('/tokenize', body);
  const ids = reply.status === 200 ? (scanIds(reply.body, 'tokens')?.ids ?? null) : null;
  return ids !== null && ids.length > 0 ? ids : null;
}
