import { VirtualClock } from '@floe-rl/core';
import { engineSpecSchema } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { EngineServer } from '../../../src/engines/engine-server.ts';
import { sglangServer } from '../../../src/engines/sglang/engine.ts';
import { type Profile, probeServer } from '../../../src/engines/sglang/probe.ts';
import { json, type Received } from '../scripted-server.ts';
import { SglangScript } from './scripted-sglang.ts';

const SEPARATE = '/separate_reasoning';
const PARSE_CALLS = '/parse_function_call';

let server: SglangScript;
let client: EngineServer | null;

beforeEach(() => {
  server = new SglangScript();
  client = null;
});
afterEach(stop);

async function stop(): Promise<void> {
  await client?.close();
  await server.http.close();
}

async function probe(over: object = {}): Promise<Profile> {
  await server.http.listen();
  const spec = engineSpecSchema.parse({ kind: 'sglang', base_url: server.http.baseUrl, ...over });
  client = sglangServer(spec, new VirtualClock());
  return probeServer(client, { spec, salts: ['one', 'two'], forceNative: false });
}

const requests = (path: string): Received[] => server.http.received.filter((received) => received.path === path);

/** Sets the server's parser of thinking. */
function separate(parse: (text: string) => object): void {
  server.http.routes[SEPARATE] = ({ body, response }) => json(response, 200, parse(String(body.text)));
}

const CANNOT_READ = { canReadText: false, opening: '' };
const NOTE = 'it does not parse text independently of sampling, so that interrupted replies are not resumed';

describe('text is parsed by the server', () => {
  it('when its parsers accept text', async () => {
    const profile = await probe();
    expect(profile).toMatchObject({ canReadText: true, opening: '' });
    expect(profile.capabilities.notes).not.toContain(NOTE);
    const [{ body: parsed } = {}] = requests(PARSE_CALLS);
    const name = expect.stringMatching(/^\w+$/);
    expect(parsed).toEqual({
      text: expect.any(String),
      tools: [{ type: 'function', function: { name, parameters: { type: 'object' } } }],
      tool_call_parser: 'qwen25',
    });
    expect(requests(SEPARATE)[0]?.body).toEqual({ text: parsed?.text, reasoning_parser: 'qwen3' });
  });

  it('with the parsers that the specification of the engine names', async () => {
    const { parsers } = await probe({ tool_parser: 'hermes', reasoning_parser: 'glm45' });
    expect(parsers).toEqual({ tools: 'hermes', reasoning: 'glm45' });
    expect(requests(PARSE_CALLS)[0]?.body.tool_call_parser).toBe('hermes');
    expect(requests(SEPARATE)[0]?.body.reasoning_parser).toBe('glm45');
  });

  it('without a request about calls when it has no parser of calls', async () => {
    server.script.serverInfo = { reasoning_parser: 'qwen3' };
    expect((await probe()).canReadText).toBe(true);
    expect(requests(PARSE_CALLS)).toEqual([]);
    expect(requests(SEPARATE)).not.toEqual([]);
  });

  it('without a request about thinking when it has no parser of thinking', async () => {
    server.script.serverInfo = { tool_call_parser: 'qwen25' };
    expect(await probe()).toMatchObject({ canReadText: true, opening: '' });
    expect(requests(SEPARATE)).toEqual([]);
  });

  it.each([
    ['calls', PARSE_CALLS],
    ['thinking', SEPARATE],
  ])('never when it does not parse %s', async (_, path) => {
    delete server.http.routes[path];
    server.script.inputIds = false;
    const profile = await probe();
    expect(profile).toMatchObject({ ...CANNOT_READ, tokenInput: 'none' });
    expect(profile.capabilities.notes).toContain(NOTE);
  });

  it('never when its parser of thinking returns something else than text', async () => {
    separate(() => ({ reasoning_text: 5, text: null }));
    expect(await probe()).toMatchObject(CANNOT_READ);
  });

  it('only if the probe of it was answered', async () => {
    server.http.routes[SEPARATE] = ({ response }) => void response.destroy();
    await expect(probe()).rejects.toMatchObject({ code: 'engine_unavailable' });
  });
});

describe('the text in front of a reply', () => {
  /** Makes the server render every conversation as the id 500, and a generation prompt of the ids from 1 to `length`. */
  function withGenerationPrompt(length: number): void {
    const prompt = Array.from({ length }, (_, index) => index + 1);
    server.http.onTokenize = ({ body, response }) => {
      const tokens = body.add_generation_prompt === false ? [500] : [500, ...prompt];
      json(response, 200, { tokens, count: tokens.length, max_model_len: 4096 });
    };
  }

  /** Makes the server take all that follows `opening` for thinking. */
  function thinkingAfter(opening: string): void {
    separate((text) => {
      const start = text.indexOf(opening);
      return start < 0
        ? { reasoning_text: '', text }
        : { reasoning_text: text.slice(start + opening.length), text: text.slice(0, start) };
    });
  }

  it.each([
    ['one id', '<3>', '<3>'],
    ['two ids', '<2><3>', '<2><3>'],
    ['the whole generation prompt', '<1><2><3>', '<1><2><3>'],
  ])('is the shortest end of the generation prompt that opens thinking: %s', async (_, opening, found) => {
    withGenerationPrompt(3);
    thinkingAfter(opening);
    expect((await probe()).opening).toBe(found);
  });

  it('is empty, without further requests, when the parser takes every reply for thinking', async () => {
    thinkingAfter('');
    expect((await probe()).opening).toBe('');
    expect(requests('/detokenize')).toEqual([]);
  });

  it('is empty when no end of the generation prompt opens thinking', async () => {
    withGenerationPrompt(3);
    thinkingAfter('<4>');
    expect((await probe()).opening).toBe('');
    expect(requests('/detokenize')).toHaveLength(3);
  });

  it.each([
    ['also in the text', (text: string) => ({ reasoning_text: text, text })],
    ['only in the text', (text: string) => ({ text })],
    ['neither in thinking nor in the text', () => ({ reasoning_text: null, text: null })],
  ])('is not one after which the parser finds the reply %s', async (_, parse) => {
    withGenerationPrompt(3);
    separate((text) => (text.startsWith('<3>') ? { reasoning_text: text } : parse(text)));
    expect((await probe()).opening).toBe('<3>');
  });

  it('is at most 16 ids long', async () => {
    withGenerationPrompt(20);
    thinkingAfter('<5>');
    expect((await probe()).opening).toMatch(/^<5>.*<20>$/);
    await stop();
    server = new SglangScript();
    withGenerationPrompt(20);
    thinkingAfter('<4>');
    expect((await probe()).opening).toBe('');
  });

  it.each([
    ['without the white space at its end, which would become part of the thinking', '<think>', '<think>'],
    ['with the white space at its end when the parser needs it', '<think>\n', '<think>\n'],
  ])('is taken %s', async (_, opening, found) => {
    withGenerationPrompt(3);
    server.http.routes['/detokenize'] = ({ response }) => json(response, 200, { text: '<think>\n' });
    thinkingAfter(opening);
    expect((await probe()).opening).toBe(found);
  });

  it('is empty when the server renders no messages, or no generation prompt can be found', async () => {
    server.script.chatTokenize = false;
    expect(await probe()).toMatchObject({ renderer: null, opening: '' });
    await stop();
    server = new SglangScript();
    let renderings = 0;
    server.http.onTokenize = ({ response }) => json(response, 200, { tokens: [++renderings, 2, 3] });
    expect(await probe()).toMatchObject({ renderer: { generationPrompt: null }, opening: '' });
    expect(requests(SEPARATE)).toHaveLength(1);
  });
});
