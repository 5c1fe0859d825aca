import { z } from 'zod';
import { FloeError } from '../../core/errors.ts';
import type { EngineCapabilities, EngineSpec, TemplateFacts } from '../../schema/index.ts';
import type { EngineServer } from '../engine-server.ts';
import { toldSomething } from '../http.ts';
import { probeTemplate, UNKNOWN_TEMPLATE } from '../template-probe.ts';
import {
  type ChatFindings,
  type NativeFindings,
  probeChat,
  probeNative,
  probeSalt,
  type SaltFinding,
} from './chat-probe.ts';
import { type PromptRenderer, probeRenderer } from './render.ts';
import { readServerInfo, type ServerInfo } from './server-info.ts';
import type { Parsers } from './text-reader.ts';

/** How prompts are given as ids. */
export type TokenInput = 'input_ids' | 'generate' | 'none';

/** All that was found out about a server when it was registered. */
export type Profile = {
  readonly info: ServerInfo;
  readonly chat: ChatFindings;
  readonly native: NativeFindings | null;
  readonly tokenInput: TokenInput;
  readonly renderer: PromptRenderer | null;
  readonly template: TemplateFacts;
  readonly parsers: Parsers;
  /** Whether text can be read by the server's parsers apart from sampling. */
  readonly readsText: boolean;
  /** What the template opens before a reply that the reasoning parser has to see. */
  readonly opening: string;
  readonly salt: SaltFinding;
  readonly experts: boolean;
  readonly capabilities: EngineCapabilities;
};

export type ProbeOptions = {
  readonly spec: EngineSpec;
  /** Names that no other probe uses. */
  readonly salts: readonly [string, string];
  /** Prompts go to `/generate` even where chat completions take ids. */
  readonly forceNative: boolean;
};

/**
 * Asks a server what it can do, by look-ups and calls of two tokens. Rejects with `engine_unavailable` when it cannot be reached,
 * `engine_error` when it is no SGLang server, serves another model or tells no token ids.
 */
export async function probeServer(server: EngineServer, options: ProbeOptions): Promise<Profile> {
  const { spec } = options;
  const info = await readServerInfo(server, spec.model);
  const parsers = {
    tools: spec.tool_parser ?? info.toolParser,
    reasoning: spec.reasoning_parser ?? info.reasoningParser,
  };
  const renderer = await probeRenderer(server, info.model);
  const ids = await renderer?.sample();
  const chat = await probeChat(server, info.model, ids ?? null, spec.stream === 'auto');
  const native = ids === undefined ? null : await probeNative(server, ids);
  const reading = await probeReading(server, parsers, renderer);
  const tokenInput = tokenInputOf(chat, native, reading.works, options.forceNative);
  const salt = await probeSalt(server, info.model, chat.whole, options.salts);
  const abort = await answers(server, '/abort_request', { rid: 'floe-probe-of-no-call' });
  // Any mode would pause it, and releases that know no modes would pause for a body that has none.
  const pause = (await server.look('/pause_generation')).status === WRONG_METHOD;
  const template = await templateOf(renderer);
  const experts = info.tellsExperts && info.expertShape !== null;
  const facts = { info, chat, native, tokenInput, renderer, template, parsers, salt, experts };
  const capabilities: EngineCapabilities = {
    token_ids: true,
    token_input: tokenInput,
    version_spans: chat.versionSpans || native?.versionSpans === true,
    pause,
    abort,
    cache_salt: salt === 'seen',
    notes: notesOf({ ...facts, readsText: reading.works, pause, abort }),
    template,
  };
  return { ...facts, readsText: reading.works, opening: reading.opening, capabilities };
}

function tokenInputOf(
  chat: ChatFindings,
  native: NativeFindings | null,
  readsText: boolean,
  forceNative: boolean,
): TokenInput {
  if (chat.inputIds && !forceNative) return 'input_ids';
  return native !== null && readsText ? 'generate' : 'none';
}

const PROBED_TOOLS = [{ type: 'function', function: { name: 'look', parameters: { type: 'object' } } }];
const separatedSchema = z.looseObject({ reasoning_text: z.string().nullish(), text: z.string().nullish() });

/** What a reply might say, and no template. */
const WORD = 'yes';

/** Openings of thinking are a few tokens long. */
const MAX_OPENING_TOKENS = 16;

type Reading = { readonly works: boolean; readonly opening: string };

async function probeReading(server: EngineServer, parsers: Parsers, renderer: PromptRenderer | null): Promise<Reading> {
  const { tools, reasoning } = parsers;
  const calls = { text: WORD, tools: PROBED_TOOLS, tool_call_parser: tools };
  if (tools !== null && !(await answers(server, '/parse_function_call', calls))) {
    return { works: false, opening: '' };
  }
  if (reasoning === null) return { works: true, opening: '' };
  if ((await thinks(server, reasoning, WORD)) === null) return { works: false, opening: '' };
  return { works: true, opening: await openingOf(server, reasoning, renderer) };
}

/** The shortest end of the generation prompt behind which the parser takes a word for thinking; none: the empty text. */
async function openingOf(server: EngineServer, parser: string, renderer: PromptRenderer | null): Promise<string> {
  const ids = renderer?.generationPrompt ?? null;
  if (renderer === null || ids === null) return '';
  for (let length = 0; length <= Math.min(ids.length, MAX_OPENING_TOKENS); length++) {
    const text = length === 0 ? '' : await renderer.detokenize(ids.subarray(ids.length - length), deadline());
    if ((await thinks(server, parser, text + WORD)) !== true) continue;
    // What a parser that was told of the opening does not see as thinking either.
    const bare = text.trimEnd();
    return (await thinks(server, parser, bare + WORD)) === true ? bare : text;
  }
  return '';
}

/** Whether a text ends within thinking; null: the server cannot tell. */
async function thinks(server: EngineServer, parser: string, text: string): Promise<boolean | null> {
  try {
    const body = JSON.stringify({ text, reasoning_parser: parser });
    const parsed = await server.call('/separate_reasoning', body, null, separatedSchema, deadline());
    return parsed.reasoning_text?.includes(WORD) === true && parsed.text?.includes(WORD) !== true;
  } catch (error) {
    if (toldSomething(error)) return null;
    throw error;
  }
}

/** A route that is there refuses another method by 405. */
const WRONG_METHOD = 405;

async function answers(server: EngineServer, path: string, body: object): Promise<boolean> {
  const { status } = await server.tell(path, JSON.stringify(body));
  return status === 200;
}

const PROBE_TIMEOUT_MS = 10_000;

function deadline(): AbortSignal {
  return AbortSignal.timeout(PROBE_TIMEOUT_MS);
}

/** A conversation that the server fails on tells as little as one that its template refuses. */
async function templateOf(renderer: PromptRenderer | null): Promise<TemplateFacts> {
  if (renderer === null || renderer.generationPrompt === null) return UNKNOWN_TEMPLATE;
  return probeTemplate(async (texts, how) => {
    try {
      return await renderer.render(texts, how, deadline());
    } catch (error) {
      if (!toldSomething(error)) throw error;
      throw new FloeError('engine_rejected', error.message, error.details, error);
    }
  });
}

type Notable = Omit<Profile, 'capabilities' | 'opening'> & { readonly pause: boolean; readonly abort: boolean };

function notesOf(found: Notable): string[] {
  const { chat, info, renderer } = found;
  const notes = [`token ids: ${chat.age}`, chat.streamed === null ? 'replies arrive whole' : 'streams are exact'];
  if (info.version !== null) notes.push(`SGLang ${info.version}`);
  const say = (holds: boolean, note: string): void => {
    if (holds) notes.push(note);
  };
  say(info.incrementalStreams, '/generate streams pieces');
  say(renderer === null, '/tokenize takes no messages, so that prompts cannot be rendered');
  say(
    renderer?.generationPrompt === null,
    "the template's generation prompt cannot be told apart, so that no turn is spliced",
  );
  say(chat.inputIds, 'chat completions take input_ids');
  say(found.native !== null, '/generate tells ids');
  say(found.native?.seed === false, '/generate knows no seeds');
  say(found.parsers.tools === null, 'it has no tool-call parser');
  say(found.parsers.reasoning === null, 'it has no reasoning parser');
  say(!found.readsText, 'it does not parse text apart from sampling, so that broken-off replies are not continued');
  say(!found.abort, 'calls cannot be aborted by id');
  say(!found.pause, 'it cannot be paused');
  say(found.salt === 'taken', 'whether it honours cache_salt cannot be seen');
  say(
    info.tellsExperts && !found.experts,
    'routed experts are not asked for, since neither layers nor experts per token are told',
  );
  return notes;
}
