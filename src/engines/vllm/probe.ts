import type { Clock } from '../../core/clock.ts';
import type { TemplateFacts } from '../../schema/index.ts';
import { IdScanner, scanIds } from '../chat/reply-scan.ts';
import { type EngineServer, hasAnswered } from '../engine-server.ts';
import { probeTemplate, UNKNOWN_TEMPLATE } from '../template-probe.ts';
import { TokenCalls, type TurnEnds } from './generate.ts';
import { derender } from './message-reader.ts';
import { render } from './rendering.ts';
import { capabilitiesOf, PROBE_REQUEST, readServerFacts, type ServerFacts } from './server-facts.ts';

/** Time limit of one short rendering. It is long because a busy server may take a while to answer. */
const PROBE_TIMEOUT_MS = 30_000;

/** Word that is converted to a message with and without a closing token. The difference shows how the parsers treat that token. */
const PROBE_WORD = 'ok';

/** The properties of a server that are determined when it is connected and do not change later. */
export type Profile = {
  readonly facts: ServerFacts;
  readonly template: TemplateFacts;
  /** Sends calls whose prompt is token ids; `null` when the server does not support them. */
  readonly tokens: TokenCalls | null;
  /** Sentences that state why a property is missing, in addition to the notes that follow from `facts`. */
  readonly notes: readonly string[];
};

/** Determines the properties of a server without sampling. Rejects as `createVllmEngine` does. */
export async function probeServer(server: EngineServer, model: string | null, clock: Clock): Promise<Profile> {
  const facts = await readServerFacts(server, model);
  const notes: string[] = [];
  /** Runs an optional probe. When the server refuses it, the refusal is noted and `fallback` is used. */
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
  if (capabilitiesOf(facts).token_input === 'none') return { facts, template, tokens: null, notes };
  const tokens = await probed('its parsers cannot be used', null, async () => {
    const ends = await turnEndsOf(server, facts, template.close_ids);
    return new TokenCalls(server, facts, ends, clock);
  });
  return { facts, template, tokens, notes };
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
 * Determines whether the parsers show the token that closes a turn: parsers that work on text do, parsers that work on ids need it.
 * Rejects when the parsers cannot parse a word.
 */
async function turnEndsOf(server: EngineServer, facts: ServerFacts, ids: readonly number[]): Promise<TurnEnds> {
  const closeIds = new Set(ids);
  const [close] = ids;
  const word = facts.routes.tokenize ? await probeWordIds(server, facts) : null;
  // It is unknown whether the parsers show the token, so it is left out: it must not appear in the text.
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

async function probeWordIds(server: EngineServer, { model }: ServerFacts): Promise<Int32Array | null> {
  const body = JSON.stringify({ model, prompt: PROBE_WORD, add_special_tokens: false });
  const reply = await server.controlPost('/tokenize', body);
  const ids = reply.status === 200 ? (scanIds(reply.body, 'tokens')?.ids ?? null) : null;
  return ids !== null && ids.length > 0 ? ids : null;
}
