import { z } from 'zod';
import type { CallNames } from '../engine.ts';
import type { EngineServer } from '../engine-server.ts';
import { toldSomething } from '../http.ts';
import { idListSchema } from './facts.ts';
import { learnGenerationPrompt, withoutEnd } from './generation-prompt.ts';
import { tokenizeBody } from './request.ts';

const tokensSchema = z.looseObject({ tokens: idListSchema });
const countSchema = z.looseObject({ count: z.int().min(0) });
const textSchema = z.looseObject({ text: z.string() });

const HELLO = '{"role":"user","content":"Hello."}';

/** Look-ups at registration are small; one that hangs must not hold it up. */
const PROBE_TIMEOUT_MS = 10_000;

export type RenderHow = { readonly toolsText: string; readonly generationPrompt: boolean };

/** What of the field `add_generation_prompt` is known. SGLang's own releases always add one. */
type PromptField = 'known' | 'unknown';

/**
 * Tells ids by the server's own template. The server has no way to leave the opening of the assistant's turn away, unless it
 * knows `add_generation_prompt`; so it is taken off, where it could be learned.
 */
export class PromptRenderer {
  /** What opens the assistant's turn; null: it cannot be told apart from what comes before. */
  readonly generationPrompt: Int32Array | null;
  private readonly server: EngineServer;
  private readonly model: string;
  private readonly field: PromptField;

  constructor(server: EngineServer, model: string, field: PromptField, generationPrompt: Int32Array | null) {
    this.server = server;
    this.model = model;
    this.field = field;
    this.generationPrompt = generationPrompt;
  }

  /** Rejects with `unsupported` where the end of the last turn cannot be found. */
  async render(
    messageTexts: readonly string[],
    { toolsText, generationPrompt }: RenderHow,
    signal: AbortSignal,
    names: CallNames | null = null,
  ): Promise<Int32Array> {
    const field = this.field === 'known' ? generationPrompt : null;
    const ids = await renderOpen(this.server, this.model, messageTexts, toolsText, field, signal, names);
    if (generationPrompt || this.field === 'known') return ids;
    const bare = this.generationPrompt === null ? null : withoutEnd(ids, this.generationPrompt);
    if (bare === null) {
      throw this.server.fail('unsupported', 'the end of the last turn cannot be told apart from the generation prompt');
    }
    return bare;
  }

  async detokenize(ids: Int32Array, signal: AbortSignal, names: CallNames | null = null): Promise<string> {
    const body = `{"model":${JSON.stringify(this.model)},"tokens":[${ids.join(',')}],"skip_special_tokens":false}`;
    return (await this.server.call('/detokenize', body, names, textSchema, signal)).text;
  }

  async count(
    messageTexts: readonly string[],
    toolsText: string,
    signal: AbortSignal,
    names: CallNames,
  ): Promise<number> {
    const body = tokenizeBody(this.model, messageTexts, toolsText, this.field === 'known' ? true : null);
    return (await this.server.call('/tokenize', body, names, countSchema, signal)).count;
  }

  /** Some prompt. */
  sample(): Promise<Int32Array> {
    return this.render([HELLO], { toolsText: '[]', generationPrompt: true }, AbortSignal.timeout(PROBE_TIMEOUT_MS));
  }
}

async function renderOpen(
  server: EngineServer,
  model: string,
  messageTexts: readonly string[],
  toolsText: string,
  field: boolean | null,
  signal: AbortSignal,
  names: CallNames | null,
): Promise<Int32Array> {
  const body = tokenizeBody(model, messageTexts, toolsText, field);
  return Int32Array.from((await server.call('/tokenize', body, names, tokensSchema, signal)).tokens);
}

/** Null when the server renders no messages. */
export async function probeRenderer(server: EngineServer, model: string): Promise<PromptRenderer | null> {
  const open = (texts: readonly string[], tools: string, field: boolean | null = null): Promise<Int32Array | null> =>
    unlessRefused(renderOpen(server, model, texts, tools, field, AbortSignal.timeout(PROBE_TIMEOUT_MS), null));
  const plain = await open([HELLO], '[]');
  if (plain === null) return null;
  const bare = await open([HELLO], '[]', false);
  if (bare !== null && bare.length < plain.length && bare.every((id, index) => plain[index] === id)) {
    return new PromptRenderer(server, model, 'known', plain.slice(bare.length));
  }
  return new PromptRenderer(server, model, 'unknown', await learnGenerationPrompt(open));
}

async function unlessRefused(ids: Promise<Int32Array>): Promise<Int32Array | null> {
  try {
    return await ids;
  } catch (error) {
    if (toldSomething(error)) return null;
    throw error;
  }
}
