import { z } from 'zod';
import { tokenIdsSchema } from '../chat/reply-tokens.ts';
import type { CallContext } from '../engine.ts';
import { type EngineServer, hasAnswered } from '../engine-server.ts';
import { tokenizeBody } from './request.ts';

const tokensSchema = z.looseObject({ tokens: tokenIdsSchema });
const countSchema = z.looseObject({ count: z.int().min(0) });
const textSchema = z.looseObject({ text: z.string() });

const HELLO = '{"role":"user","content":"Hello."}';

/**
 * Time limit of a rendering at registration. Only short conversations are rendered then, and a server that hangs must not block the
 * registration.
 */
const PROBE_TIMEOUT_MS = 10_000;

export type RenderOptions = { readonly toolsText: string; readonly generationPrompt: boolean };

/** Whether the server supports the field `add_generation_prompt`. SGLang's own releases always add a generation prompt. */
type PromptFieldSupport = 'supported' | 'unsupported';

/**
 * Renders messages to token ids with the server's chat template. A server that does not support `add_generation_prompt` always appends the
 * generation prompt. For such a server, this class removes the generation prompt when it is not wanted.
 */
export class PromptRenderer {
  /** Token ids that open the assistant's turn, which the template appends to a prompt; `null` when they could not be determined. */
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

  /**
   * Renders messages to token ids. Rejects with `unsupported` when the caller wants no generation prompt (the ids that open the assistant's
   * turn) and this class cannot remove it from the rendering.
   */
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

  /** Renders a short conversation to token ids, which serve as a prompt in probe calls. */
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

/** Determines how the server renders messages. Resolves with `null` when it cannot render messages. */
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

/** Function that renders a short conversation, always with the generation prompt; `null` when the template refuses the conversation. */
type OpenRenderer = (messageTexts: readonly string[], toolsText: string) => Promise<Int32Array | null>;

const TOOLS = '[{"type":"function","function":{"name":"look","description":"looks","parameters":{"type":"object"}}}]';

const message = (role: string, content: string): string => JSON.stringify({ role, content });
const CALL = { id: 'call_1', type: 'function', function: { name: 'look', arguments: '{}' } };
const callTurn = (thinking: object): string =>
  JSON.stringify({ role: 'assistant', content: 'bravo', ...thinking, tool_calls: [CALL] });
const RESULT = JSON.stringify({ role: 'tool', tool_call_id: 'call_1', content: 'delta' });

/**
 * Conversations that are rendered to find the generation prompt. Each consists of a user message, the assistant turn `turn`, and the
 * message `next`.
 */
const SHAPES = [
  { tools: '[]', turn: message('assistant', 'bravo'), next: message('user', 'delta') },
  // Turns with tool calls are tried too, because many templates render an assistant turn differently when a user message follows it. One of
  // these turns has thinking, because some templates render a turn without thinking differently when it is the last one.
  { tools: TOOLS, turn: callTurn({}), next: RESULT },
  { tools: TOOLS, turn: callTurn({ reasoning_content: 'hotel' }), next: RESULT },
];

/**
 * Determines the generation prompt (the ids that open the assistant's turn) of a server that appends it to every conversation that it renders.
 * Two conversations are rendered, and the second continues the first. The first rendering ends with the generation prompt. At the same place,
 * the second rendering has a new turn. All turns begin with the same few ids, so the renderings differ only after these ids. Resolves with
 * `null` when the renderings do not have this structure.
 */
export async function findGenerationPrompt(render: OpenRenderer): Promise<Int32Array | null> {
  const [one, other] = await Promise.all([
    render([message('system', 'charlie'), message('user', 'alpha')], '[]'),
    render([message('system', 'echo'), message('user', 'alpha')], '[]'),
  ]);
  const user = message('user', 'alpha');
  // Some templates refuse a system turn. For such a template, two conversations with different user turns are compared instead.
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

/** Removes `suffix` from the end of `ids`; `null` when `ids` does not end with it. */
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

/**
 * Maximum number of begin-of-text ids before the first turn of a rendered conversation. Ids that equal the beginning of a turn but follow
 * more ids than this are ignored, because they may be part of a message.
 */
const MAX_START_IDS = 3;

/**
 * Returns how many ids at the end of `ids` belong to the beginning of a turn. Every turn begins with the same ids. They are looked up in
 * `head`, the start of a rendered conversation, which consists of the begin-of-text ids, if any, and the beginning of the first turn.
 */
function turnStartLength(ids: Int32Array, head: Int32Array): number {
  for (let length = Math.min(ids.length, head.length - 1); length > 0; length--) {
    const end = ids.subarray(ids.length - length);
    for (let from = 0; from <= MAX_START_IDS && from + length < head.length; from++) {
      if (end.every((id, index) => head[from + index] === id)) return length;
    }
  }
  return 0;
}
