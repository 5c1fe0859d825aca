import { readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { TextTokenizer, tokenizerJsonSchema } from '@floe-rl/capture';
import { FloeError, messageOf, parseAs, parseJson } from '@floe-rl/core';
import type { TokenTexts } from '@floe-rl/server';

/**
 * Loads the tokenizers that the setting `tokenizers` names: files, or folders with a `tokenizer.json`, by the names of models. Throws
 * `setup_failed` with the path of a tokenizer that cannot be loaded.
 */
export async function loadTokenTexts(paths: Readonly<Record<string, string>>): Promise<TokenTexts> {
  const tokenizers = new Map<string, TextTokenizer>();
  for (const [model, path] of Object.entries(paths)) tokenizers.set(model, await loadTokenizer(model, path));
  return (model, ids) => tokenizers.get(model)?.pieces(Int32Array.from(ids)) ?? null;
}

async function loadTokenizer(model: string, path: string): Promise<TextTokenizer> {
  const key = `tokenizers.${model}`;
  try {
    const isFolder = (await stat(path)).isDirectory();
    const json = parseJson(await readFile(isFolder ? join(path, 'tokenizer.json') : path));
    return new TextTokenizer(parseAs(tokenizerJsonSchema, json, key), {});
  } catch (cause) {
    const message = messageOf(cause);
    throw new FloeError('setup_failed', `${key}: ${path} cannot be loaded: ${message}`, { key, path }, cause);
  }
}
