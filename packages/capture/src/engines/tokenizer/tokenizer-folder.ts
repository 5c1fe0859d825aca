import { readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { FloeError } from '@floe-rl/core';
import { LRUCache } from 'lru-cache';
import { z } from 'zod';
import { ChatTemplate } from './chat-template.ts';
import { TextTokenizer, type TokenizerJson, tokenizerJsonSchema } from './text-tokenizer.ts';

const TOKENIZER_FILE = 'tokenizer.json';
const CONFIG_FILE = 'tokenizer_config.json';
const TEMPLATE_FILE = 'chat_template.jinja';
const GENERATION_FILE = 'generation_config.json';

/**
 * Maximum number of loaded folders that are kept. The tokenizer of a large model takes about a second to load and 100 MB of memory, and
 * every reconnection of an engine needs it.
 */
const MAX_LOADED = 4;

/** Values of `model_max_length` above this number of tokens are placeholders for "no limit", which many tokenizers have. */
const MAX_PLAUSIBLE_LENGTH = 100_000_000;

const tokenTextSchema = z.union([
  z.string(),
  z.looseObject({ content: z.string() }).transform(({ content }) => content),
]);

const SPECIAL_TOKENS = [
  'bos_token',
  'eos_token',
  'unk_token',
  'sep_token',
  'pad_token',
  'cls_token',
  'mask_token',
] as const;

const configSchema = z.looseObject({
  ...Object.fromEntries(SPECIAL_TOKENS.map((name) => [name, tokenTextSchema.nullish()])),
  model_max_length: z.number().nullish(),
  chat_template: z.union([z.string(), z.array(z.looseObject({ name: z.string(), template: z.string() }))]).nullish(),
});

const generationSchema = z.looseObject({ eos_token_id: z.union([z.int(), z.array(z.int())]).nullish() });

/** The tokenizer and the chat template of a model, as they are published next to its weights. */
export type LocalModelText = {
  readonly tokenizer: TextTokenizer;
  readonly template: ChatTemplate;
  /** The ids that end a reply of the model, as the folder's files declare them. */
  readonly endIds: readonly number[];
  /** The context length that the tokenizer's configuration declares, in tokens; `null` when it declares none. */
  readonly contextTokens: number | null;
};

const loaded = new LRUCache<string, Promise<LocalModelText>>({ max: MAX_LOADED });

/**
 * Loads a tokenizer and chat template from a folder with `tokenizer.json`, and with the template in `chat_template.jinja` or
 * `tokenizer_config.json`. A folder that has not changed is loaded once. Rejects with `setup_failed`, which names the file that is missing
 * or unreadable. No error contains a part of a file, because the path may be wrong.
 */
export async function loadTokenizerFolder(folder: string): Promise<LocalModelText> {
  const key = await stateOf(folder);
  const known = loaded.get(key);
  if (known !== undefined) return known;
  const loading = load(folder);
  loaded.set(key, loading);
  try {
    return await loading;
  } catch (error) {
    loaded.delete(key);
    throw error;
  }
}

/** Returns a text that changes when a file of the folder is replaced or written to. */
async function stateOf(folder: string): Promise<string> {
  const files = [TOKENIZER_FILE, CONFIG_FILE, TEMPLATE_FILE, GENERATION_FILE];
  const states = await Promise.all(
    files.map(async (name) => {
      try {
        const { ino, size, mtimeMs } = await stat(join(folder, name));
        return [ino, size, mtimeMs];
      } catch {
        return null;
      }
    }),
  );
  return JSON.stringify([folder, states]);
}

async function load(folder: string): Promise<LocalModelText> {
  const json = await readJson(folder, TOKENIZER_FILE, tokenizerJsonSchema);
  if (json === null) throw unusable(join(folder, TOKENIZER_FILE), 'does not exist');
  const config = (await readJson(folder, CONFIG_FILE, configSchema)) ?? configSchema.parse({});
  const tokenizer = buildTokenizer(folder, json, config);
  const template = await templateOf(folder, config);
  const generation = await readJson(folder, GENERATION_FILE, generationSchema);
  const length = config.model_max_length ?? null;
  return {
    tokenizer,
    template,
    endIds: endIdsOf(tokenizer, config, generation?.eos_token_id ?? null),
    contextTokens: length !== null && length >= 1 && length <= MAX_PLAUSIBLE_LENGTH ? Math.trunc(length) : null,
  };
}

type Config = z.output<typeof configSchema>;

function buildTokenizer(folder: string, json: TokenizerJson, config: Config): TextTokenizer {
  try {
    return new TextTokenizer(json, config);
  } catch {
    throw unusable(join(folder, TOKENIZER_FILE), 'is not a tokenizer that floe supports');
  }
}

async function templateOf(folder: string, config: Config): Promise<ChatTemplate> {
  const path = join(folder, TEMPLATE_FILE);
  const own = await readText(path);
  const listed = config.chat_template ?? null;
  const templates =
    own !== null
      ? { default: own }
      : typeof listed === 'string'
        ? { default: listed }
        : Object.fromEntries((listed ?? []).map(({ name, template }) => [name, template]));
  if (templates.default === undefined) {
    throw unusable(folder, `has no chat template, neither in ${TEMPLATE_FILE} nor in ${CONFIG_FILE}`);
  }
  try {
    return new ChatTemplate(templates.default, templates.tool_use ?? null, specialTokensOf(config));
  } catch {
    throw unusable(own === null ? join(folder, CONFIG_FILE) : path, 'has a chat template that cannot be parsed');
  }
}

function specialTokensOf(config: Config): Record<string, string> {
  const tokens: Record<string, string> = {};
  for (const name of SPECIAL_TOKENS) {
    const text = config[name];
    if (typeof text === 'string') tokens[name] = text;
  }
  return tokens;
}

function endIdsOf(tokenizer: TextTokenizer, config: Config, generationIds: number | number[] | null): number[] {
  const { eos_token: text } = specialTokensOf(config);
  const id = text === undefined ? null : tokenizer.idOf(text);
  return [...new Set([...(id === null ? [] : [id]), ...(generationIds === null ? [] : [generationIds].flat())])];
}

async function readJson<T extends z.ZodType>(folder: string, name: string, schema: T): Promise<z.output<T> | null> {
  const path = join(folder, name);
  const text = await readText(path);
  if (text === null) return null;
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch {
    throw unusable(path, 'is not JSON');
  }
  const parsed = schema.safeParse(json);
  if (parsed.success) return parsed.data;
  throw unusable(path, `has no valid ${parsed.error.issues[0]?.path.map(String).join('.') || 'object'}`);
}

/** Returns the text of a file; `null` when the file does not exist. */
async function readText(path: string): Promise<string | null> {
  try {
    return await readFile(path, 'utf8');
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code ?? 'error';
    if (code === 'ENOENT' || code === 'ENOTDIR') return null;
    throw unusable(path, `cannot be read (${code})`);
  }
}

function unusable(path: string, problem: string): FloeError {
  return new FloeError('setup_failed', `tokenizer: ${path} ${problem}`, { path });
}
