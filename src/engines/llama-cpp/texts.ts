import { z } from 'zod';
import { FloeError } from '../../core/errors.ts';
import type { EngineServer } from '../engine-server.ts';
import { templateBody } from './request.ts';

const promptSchema = z.looseObject({ prompt: z.string() });
const tokensSchema = z.looseObject({ tokens: z.array(z.int().min(0)) });
const contentSchema = z.looseObject({ content: z.string() });

/** Messages to text, text to ids and back. All reject as `Engine.render` does. */
export class LlamaCppTexts {
  private readonly server: EngineServer;
  private readonly model: string;

  constructor(server: EngineServer, model: string) {
    this.server = server;
    this.model = model;
  }

  async template(
    messageTexts: readonly string[],
    toolsText: string,
    generationPrompt: boolean,
    signal: AbortSignal,
  ): Promise<string> {
    const body = templateBody(this.model, { messageTexts, toolsText, generationPrompt });
    try {
      return (await this.server.call('/apply-template', body, null, promptSchema, signal)).prompt;
    } catch (error) {
      // The server has 500 for messages that the template or it itself cannot take; there is nothing else to fail there.
      if (!FloeError.is(error) || error.details.status !== 500) throw error;
      throw new FloeError('engine_rejected', error.message, error.details, error);
    }
  }

  /** As the server itself makes ids of a rendered conversation: special tokens are read, and a missing first one is put there. */
  async ids(content: string, signal: AbortSignal, addSpecial = true): Promise<Int32Array> {
    const body = JSON.stringify({ model: this.model, content, add_special: addSpecial, parse_special: true });
    return Int32Array.from((await this.server.call('/tokenize', body, null, tokensSchema, signal)).tokens);
  }

  async text(ids: Int32Array, signal: AbortSignal): Promise<string> {
    const body = `{"model":${JSON.stringify(this.model)},"tokens":[${ids.join(',')}]}`;
    return (await this.server.call('/detokenize', body, null, contentSchema, signal)).content;
  }
}
