import type { Clock } from '../../core/clock.ts';
import type { TemplateFacts } from '../../schema/index.ts';
import type { EngineServer } from '../engine-server.ts';
import { toldSomething } from '../http.ts';
import { IdScanner, scanIds } from '../id-scan.ts';
import { probeTemplate, UNKNOWN_TEMPLATE } from '../template-probe.ts';
import { derender } from './derender.ts';
import { TokenCalls, type TurnEnds } from './generate.ts';
import { capabilitiesOf, lookAt, PROBE_REQUEST, type ServerFacts } from './probe.ts';
import { render } from './rendering.ts';

/** Of one short rendering; a server that is busy may take its time for it. */
const PROBE_TIMEOUT_MS = 30_000;

/** One word, to see how what follows it is read. */
const WORD = 'ok';

/** What a server turned out to be. */
export type Found = {
  readonly facts: ServerFacts;
  readonly template: TemplateFacts;
  /** Null: prompts cannot be ids. */
  readonly tokens: TokenCalls | null;
  /** What was found, in words, beside what the facts say. */
  readonly notes: readonly string[];
};

/** Finds out what a server can do, without sampling from it. Rejects as `createVllmEngine` does. */
export async function connect(server: EngineServer, wanted: string | null, clock: Clock): Promise<Found> {
  const facts = await lookAt(server, wanted);
  const notes: string[] = [];
  /** What is refused is noted, and does without. */
  const tried = async <T>(what: string, without: T, work: () => Promise<T>): Promise<T> => {
    try {
      return await work();
    } catch (error) {
      if (!toldSomething(error)) throw error;
      notes.push(`${what}: ${error.message}`);
      return without;
    }
  };
  const template = await tried('its template cannot be looked at', UNKNOWN_TEMPLATE, () => templateOf(server, facts));
  if (capabilitiesOf(facts).token_input === 'none') return { facts, template, tokens: null, notes };
  const tokens = await tried('its parsers cannot be used', null, async () => {
    const ends = await turnEndsOf(server, facts, template.close_ids);
    return new TokenCalls(server, facts, ends, clock);
  });
  return { facts, template, tokens, notes };
}

async function templateOf(server: EngineServer, facts: ServerFacts): Promise<TemplateFacts> {
  if (!facts.routes.render && !facts.routes.tokenize) return UNKNOWN_TEMPLATE;
  return probeTemplate((messageTexts, options) =>
    render(server, facts, { ...PROBE_REQUEST, messageTexts, ...options }, deadline()),
  );
}

/**
 * Whether the parsers show the token that closes a turn: those that work on text do, those that work on ids need it. Rejects where
 * they cannot read a word.
 */
async function turnEndsOf(server: EngineServer, facts: ServerFacts, closeIds: readonly number[]): Promise<TurnEnds> {
  const closes = new Set(closeIds);
  const [close] = closeIds;
  const word = facts.routes.tokenize ? await idsOfWord(server, facts) : null;
  // Unknown: what no reader of text should see is left out.
  if (word === null) return { closeIds: closes, shown: true };
  const read = async (ids: Int32Array): Promise<string> => {
    const { completionId, sessionId } = PROBE_REQUEST;
    const context = { completionId, sessionId, models: facts.modelNames, scanner: new IdScanner() };
    const names = { ...context, model: facts.model, includeReasoning: false };
    const sampled = { promptTail: new Int32Array(0), ids, finishReason: 'stop' };
    return JSON.stringify(await derender(server, PROBE_REQUEST, sampled, names, deadline()));
  };
  const alone = await read(word);
  if (close === undefined) return { closeIds: closes, shown: true };
  return { closeIds: closes, shown: (await read(Int32Array.of(...word, close))) !== alone };
}

async function idsOfWord(server: EngineServer, { model }: ServerFacts): Promise<Int32Array | null> {
  const body = JSON.stringify({ model, prompt: WORD, add_special_tokens: false });
  const reply = await server.tell('/tokenize', body);
  const ids = reply.status === 200 ? (scanIds(reply.body, 'tokens')?.ids ?? null) : null;
  return ids !== null && ids.length > 0 ? ids : null;
}

function deadline(): AbortSignal {
  return AbortSignal.timeout(PROBE_TIMEOUT_MS);
}
