import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { bundledVocabulary } from '@floe-rl/sim';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { loadTokenizerFolder } from '../../../src/engines/tokenizer/tokenizer-folder.ts';
import { simTokenizerFolder, type TokenizerFolder } from './sim-folder.ts';

const { imEnd, endOfText } = bundledVocabulary().special;
const HELLO = { messageTexts: ['{"role":"user","content":"Hi"}'], toolsText: '[]', generationPrompt: false };

let folder: TokenizerFolder;
beforeEach(() => {
  folder = simTokenizerFolder();
});
afterEach(() => folder.remove());

describe('loading a folder', () => {
  it('reads tokenizer, template, end tokens and context length', async () => {
    folder.write('generation_config.json', { eos_token_id: [imEnd, endOfText] });
    const { tokenizer, template, endIds, contextTokens } = await loadTokenizerFolder(folder.path);
    expect(template.render(HELLO)).toBe('<|im_start|>user\nHi<|im_end|>\n');
    expect(tokenizer.idOf('<|im_end|>')).toBe(imEnd);
    expect(endIds).toEqual([imEnd, endOfText]);
    expect(contextTokens).toBe(4096);
  });

  it('accepts a folder without the optional files', async () => {
    rmSync(join(folder.path, 'tokenizer_config.json'));
    expect(await loadTokenizerFolder(folder.path)).toMatchObject({ endIds: [], contextTokens: null });
  });

  it('reads the template from tokenizer_config.json when it has no file of its own', async () => {
    rmSync(join(folder.path, 'chat_template.jinja'));
    const eos = { content: '<|im_end|>', lstrip: false };
    folder.write('tokenizer_config.json', {
      chat_template: 'one {{ eos_token }}',
      eos_token: eos,
      model_max_length: 1e30,
    });
    const { template, endIds, contextTokens } = await loadTokenizerFolder(folder.path);
    expect(template.render(HELLO)).toBe('one <|im_end|>');
    expect({ endIds, contextTokens }).toEqual({ endIds: [imEnd], contextTokens: null });
  });

  it('selects the default of several templates, and the one for tools', async () => {
    rmSync(join(folder.path, 'chat_template.jinja'));
    const templates = ['default', 'rag', 'tool_use'].map((name) => ({ name, template: name }));
    folder.write('tokenizer_config.json', { chat_template: templates });
    const { template } = await loadTokenizerFolder(folder.path);
    expect(template.render(HELLO)).toBe('default');
    expect(template.render({ ...HELLO, toolsText: '[{}]' })).toBe('tool_use');
  });

  it('loads a folder once, and again when a file has changed', async () => {
    const first = await loadTokenizerFolder(folder.path);
    expect(await loadTokenizerFolder(folder.path)).toBe(first);
    folder.write('chat_template.jinja', 'another template');
    const second = await loadTokenizerFolder(folder.path);
    expect(second.template.render(HELLO)).toBe('another template');
  });
});

describe('a folder that cannot be used', () => {
  it.each<[string, (it: TokenizerFolder) => void, string]>([
    ['has no tokenizer', ({ path }) => rmSync(join(path, 'tokenizer.json')), 'tokenizer.json does not exist'],
    [
      'has a tokenizer that is not JSON',
      (it) => it.write('tokenizer.json', 'root:secret'),
      'tokenizer.json is not JSON',
    ],
    ['has JSON of another kind', (it) => it.write('tokenizer.json', { a: 1 }), 'has no valid added_tokens'],
    [
      'has a tokenizer of an unknown type',
      (it) => it.write('tokenizer.json', { added_tokens: [], model: { type: 'X', vocab: {} } }),
      'is not a tokenizer that floe supports',
    ],
    ['has no chat template', ({ path }) => rmSync(join(path, 'chat_template.jinja')), 'has no chat template'],
    [
      'has a template that is no Jinja',
      (it) => it.write('chat_template.jinja', '{% if secret %}'),
      'has a chat template that cannot be parsed',
    ],
  ])('is refused when it %s, without a part of its files', async (_, spoil, message) => {
    spoil(folder);
    const error: unknown = await loadTokenizerFolder(folder.path).catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ code: 'setup_failed', message: expect.stringContaining(message) });
    expect(`${String(error)} ${JSON.stringify(error)}`).not.toContain('secret');
  });
});
