import { FloeError } from '@floe-rl/core';
import { z } from 'zod';
import type { EngineServer } from '../engine-server.ts';
import { type Conversation, templateBody } from './request.ts';

const promptSchema = z.looseObject({ prompt: z.string() });
const tokensSchema = z.looseObject({ tokens: z.array(z.int().min(0)) });
const contentSchema = z.looseObject({ content: z.string() });

/** Converts messages to text, text to token ids, and ids to text, by requests to the server. All methods reject as `Engine.render` does. */
export class LlamaCppTokenizer {
  private readonly server: EngineServer;
  private readonly model: string;

  constructor(server: EngineServer, model: string) {
    this.server = server;
    this.model = model;
  }

  async template(conversation: Conversation, signal: AbortSignal): Promise<string> {
    const body = templateBody(this.model, conversation);
    try {
      return (await this.server.call('/apply-template', body, null, promptSchema, signal)).prompt;
    } catch (error) {
      // The server answers a rendering request with status 500 only when it or its chat template rejects the messages.
      if (!FloeError.is(error) || error.details.status !== 500) throw error;
      throw new FloeError('engine_rejected', error.message, error.details, error);
    }
  }

  /**
   * Tokenizes text as the server does for a rendered conversation: special tokens are parsed. When `addSpecial` is set, the token that
   * begins every text (BOS) is added if it is missing.
   */
  async ids(content: string, signal: AbortSignal, addSpecial = true): Promise<Int32Array> {
    const body = JSON.stringify({ model: this.model, content, add_special: addSpecial, parse_special: true });
    return Int32Array.from((await this.server.call('/tokenize', body, null, tokensSchema, signal)).tokens);
  }

  async text(ids: Int32Array, signal: AbortSignal): Promise<string> {
    const body = `{"model":${JSON.stringify(this.model)},"tokens":[${ids.join(',')}]}`;
    return (await this.server.call('/detokenize', body, null, contentSchema, signal)).content;
  }
}
