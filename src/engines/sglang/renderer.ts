import { z } from 'zod';
import { tokenIdsSchema } from '../chat/reply-tokens.ts';
import type { CallContext } from '../engine.ts';
import { type EngineServer, hasAnswered } from '../engine-server.ts';
import { tokenizeBody } from './request.ts';

const tokensSchema = z.looseObject({ tokens: tokenIdsSchema });
const countSchema = z.looseObject({ count: z.int().min(0) });
const textSchema = z.looseObject({ text: z.string() });

const HELLO = '{"role":"user","content":"Hello."}';

/** Time limit of a rendering at registration, which is small; one that hangs must not block the registration. */
const PROBE_TIMEOUT_MS = 10_000;

export type RenderOptions = { readonly toolsText: string; readonly generationPrompt: boolean };

/** Whether the server supports the field `add_generation_prompt`. SGLang's own releases always add a generation prompt. */
type PromptFieldSupport = 'supported' | 'unsupported';

/**
 * Renders messages to ids by the server's chat template. A server that does not support `add_generation_prompt` always appends the
 * generation prompt, which is removed here when it is known.
 */
export class PromptRenderer {
  /** The ids that open the assistant's turn; `null` when they could not be determined. */
  readonly generationPrompt: Int32Array | null;
  private readonly server: EngineServer;
  private readonly model: string;
  private readonly promptField: PromptFieldSupport;

  constructor(
    server: EngineServer,
    model: string,
    promptField: PromptFieldSupport,
    generationPrompt: Int32Array | null,
  ) {
    this.server = server;
    this.model = model;
    this.promptField = promptField;
    this.generationPrompt = generationPrompt;
  }

  /** Rejects with `unsupported` when the end of the last turn cannot be determined. */
  async render(
    messageTexts: readonly string[],
    { toolsText, generationPrompt }: RenderOptions,
    signal: AbortSignal,
    context: CallContext | null = null,
  ): Promise<Int32Array> {
    const isSupported = this.promptField === 'supported';
    const body = tokenizeBody(this.model, messageTexts, toolsText, isSupported ? generationPrompt : null);
    const ids = await tokenize(this.server, body, context, signal);
    if (generationPrompt || isSupported) return ids;
    const bare = this.generationPrompt === null ? null : withoutSuffix(ids, this.generationPrompt);
    if (bare === null) {
      throw this.server.error('unsupported', 'the generation prompt cannot be separated from the end of the last turn');
    }
    return bare;
  }

  async detokenize(ids: Int32Array, signal: AbortSignal, context: CallContext | null = null): Promise<string> {
    const body = `{"model":${JSON.stringify(this.model)},"tokens":[${ids.join(',')}],"skip_special_tokens":false}`;
    return (await this.server.call('/detokenize', body, context, textSchema, signal)).text;
  }

  async count(
    messageTexts: readonly string[],
    toolsText: string,
    signal: AbortSignal,
    context: CallContext,
  ): Promise<number> {
    const body = tokenizeBody(this.model, messageTexts, toolsText, this.promptField === 'supported' ? true : null);
    return (await this.server.call('/tokenize', body, context, countSchema, signal)).count;
  }

  /** The ids of a short prompt, for probes. */
  samplePrompt(): Promise<Int32Array> {
    const options = { toolsText: '[]', generationPrompt: true };
    return this.server.withDeadline(PROBE_TIMEOUT_MS, (signal) => this.render([HELLO], options, signal));
  }
}

async function tokenize(
  server: EngineServer,
  body: string,
  context: CallContext | null,
  signal: AbortSignal,
): Promise<Int32Array> {
  return Int32Array.from((await server.call('/tokenize', body, context, tokensSchema, signal)).tokens);
}

/** Determines how the server renders; `null` when it renders no messages. */
export async function probeRenderer(server: EngineServer, model: string): Promise<PromptRenderer | null> {
  const render = (
    texts: readonly string[],
    tools: string,
    field: boolean | null = null,
  ): Promise<Int32Array | null> => {
    const body = tokenizeBody(model, texts, tools, field);
    return nullIfRefused(server.withDeadline(PROBE_TIMEOUT_MS, (signal) => tokenize(server, body, null, signal)));
  };
  const open = await render([HELLO], '[]');
  if (open === null) return null;
  const bare = await render([HELLO], '[]', false);
  if (bare !== null && bare.length < open.length && bare.every((id, index) => open[index] === id)) {
    return new PromptRenderer(server, model, 'supported', open.slice(bare.length));
  }
  return new PromptRenderer(server, model, 'unsupported', await findGenerationPrompt(render));
}

async function nullIfRefused(ids: Promise<Int32Array>): Promise<Int32Array | null> {
  try {
    return await ids;
  } catch (error) {
    if (hasAnswered(error)) return null;
    throw error;
  }
}

/** Renders short conversations, always with the generation prompt; `null` when the template refuses one. */
type OpenRenderer = (messageTexts: readonly string[], toolsText: string) => Promise<Int32Array | null>;

const TOOLS = '[{"type":"function","function":{"name":"look","description":"looks","parameters":{"type":"object"}}}]';

const message = (role: string, content: string): string => JSON.stringify({ role, content });
const CALL = { id: 'call_1', type: 'function', function: { name: 'look', arguments: '{}' } };
const callTurn = (thinking: object): string =>
  JSON.stringify({ role: 'assistant', content: 'bravo', ...thinking, tool_calls: [CALL] });
const RESULT = JSON.stringify({ role: 'tool', tool_call_id: 'call_1', content: 'delta' });

/** Assistant turns after a user message, and a message that may follow each. */
const SHAPES = [
  { tools: '[]', turn: message('assistant', 'bravo'), next: message('user', 'delta') },
  // Many templates render a turn differently once a user message follows, and some a last turn without thinking.
  { tools: TOOLS, turn: callTurn({}), next: RESULT },
  { tools: TOOLS, turn: callTurn({ reasoning_content: 'hotel' }), next: RESULT },
];

/**
 * Determines the generation prompt of a server that renders no conversation without it. It is the part of a rendering that is
 * replaced when the conversation continues: two renderings are equal up to there. Because all turns begin with the same ids, the
 * point where they differ is too late by that many; their number is determined from the first turn of a conversation. `null` when
 * the renderings do not have this structure.
 */
export async function findGenerationPrompt(render: OpenRenderer): Promise<Int32Array | null> {
  const [one, other] = await Promise.all([
    render([message('system', 'charlie'), message('user', 'alpha')], '[]'),
    render([message('system', 'echo'), message('user', 'alpha')], '[]'),
  ]);
  const user = message('user', 'alpha');
  // With templates that refuse a system turn, the user's turn is compared instead.
  const [first, second] =
    one && other ? [one, other] : [await render([user], '[]'), await render([message('user', 'echo')], '[]')];
  if (first === null || second === null) return null;
  const head = first.subarray(0, sharedLength(first, second));
  for (const { tools, turn, next } of SHAPES) {
    const [start, ended, continued] = await Promise.all([
      render([user], tools),
      render([user, turn], tools),
      render([user, turn, next], tools),
    ]);
    if (start === null || ended === null || continued === null) continue;
    const shared = ended.subarray(0, sharedLength(ended, continued));
    const generationPrompt = ended.slice(shared.length - turnStartLength(shared, head));
    const bareStart = withoutSuffix(start, generationPrompt);
    const bareEnded = withoutSuffix(ended, generationPrompt);
    if (bareStart === null || bareEnded === null || withoutSuffix(continued, generationPrompt) === null) continue;
    if (
      sharedLength(bareStart, ended) === bareStart.length &&
      sharedLength(bareEnded, continued) === bareEnded.length
    ) {
      return generationPrompt;
    }
  }
  return null;
}

/** `ids` without `suffix`; `null` when they do not end with it. */
function withoutSuffix(ids: Int32Array, suffix: Int32Array): Int32Array | null {
  const length = ids.length - suffix.length;
  if (length < 0 || !suffix.every((id, index) => ids[length + index] === id)) return null;
  return ids.subarray(0, length);
}

function sharedLength(a: Int32Array, b: Int32Array): number {
  const limit = Math.min(a.length, b.length);
  let length = 0;
  while (length < limit && a[length] === b[length]) length++;
  return length;
}

/** Number of begin-of-text ids that may precede the first turn; a match further on may be a coincidence. */
const MAX_START_IDS = 3;

/** How many of the last ids are the first ids of a turn. `head` begins with such a start, followed by the name of its role. */
function turnStartLength(ids: Int32Array, head: Int32Array): number {
  for (let length = Math.min(ids.length, head.length - 1); length > 0; length--) {
    const end = ids.subarray(ids.length - length);
    for (let from = 0; from <= MAX_START_IDS && from + length < head.length; from++) {
      if (end.every((id, index) => head[from + index] === id)) return length;
    }
  }
  return 0;
}
