import { FloeError } from '@floe-rl/core';
import type { EngineCapabilities, EngineSpec, LogprobsMode, TemplateFacts } from '@floe-rl/core/schema';
import { z } from 'zod';
import { type EngineServer, hasAnswered } from '../engine-server.ts';
import { probeLogprobs } from '../logprobs-probe.ts';
import { probeTemplate, UNKNOWN_TEMPLATE } from '../template-probe.ts';
import {
  type ChatFeatures,
  type NativeFeatures,
  probeChat,
  probeNative,
  probeSalt,
  type SaltSupport,
  topLogprobsAt,
} from './chat-probe.ts';
import { type PromptRenderer, probeRenderer } from './renderer.ts';
import { readServerFacts, type ServerFacts } from './server-facts.ts';
import type { Parsers } from './text-reader.ts';

/** How a prompt of token ids is sent to the server: in the field `input_ids` of chat completions, to `/generate`, or not at all. */
type TokenInput = 'input_ids' | 'generate' | 'none';

/** The properties of a server that are determined when it is connected and do not change afterwards. */
export type Profile = {
  readonly facts: ServerFacts;
  readonly chat: ChatFeatures;
  readonly native: NativeFeatures | null;
  readonly tokenInput: TokenInput;
  readonly renderer: PromptRenderer | null;
  readonly template: TemplateFacts;
  readonly parsers: Parsers;
  /** Whether the server can parse tool calls and thinking from a given text, without sampling. */
  readonly canReadText: boolean;
  /**
   * Text at the end of the prompt, such as the opening of a thinking block, that the reasoning parser needs before the reply. Empty when the
   * parser needs none.
   */
  readonly opening: string;
  readonly salt: SaltSupport;
  /** Whether calls ask the server for the experts that the model's router chose. */
  readonly experts: boolean;
  readonly logprobsMode: LogprobsMode;
  readonly capabilities: EngineCapabilities;
};

type ProbeOptions = {
  readonly spec: EngineSpec;
  /** Two cache salts that no earlier probe has used, so that the prefix cache contains no entries with them. */
  readonly salts: readonly [string, string];
  /** Whether prompts of token ids are sent to `/generate` even if chat completions accept them. */
  readonly forceNative: boolean;
};

/**
 * Determines the properties of a server with control requests and with calls that sample two tokens. Rejects with `engine_unavailable` when
 * the server cannot be reached, and with `engine_error` when it is not an SGLang server, does not serve the model or reports no token ids.
 */
export async function probeServer(server: EngineServer, options: ProbeOptions): Promise<Profile> {
  const { spec } = options;
  const facts = await readServerFacts(server, spec.model);
  const parsers = {
    tools: spec.tool_parser ?? facts.toolParser,
    reasoning: spec.reasoning_parser ?? facts.reasoningParser,
  };
  const renderer = await probeRenderer(server, facts.model);
  const ids = await renderer?.samplePrompt();
  const chat = await probeChat(server, facts.model, ids ?? null, spec.stream === 'auto');
  const native = ids === undefined ? null : await probeNative(server, ids);
  const { canReadText, opening } = await probeParsers(server, parsers, renderer);
  const tokenInput = tokenInputOf(chat, native, canReadText, options.forceNative);
  const salt = await probeSalt(server, facts.model, chat.flags, options.salts);
  const logprobs = await probeLogprobs(spec.logprobs_mode, (temperature) =>
    topLogprobsAt(server, facts.model, chat.flags, temperature),
  );
  const abort = await accepts(server, '/abort_request', { rid: 'floe-probe-of-no-call' });
  // The route is checked with a GET, because a POST pauses the server.
  const pause = (await server.controlGet('/pause_generation')).status === WRONG_METHOD;
  const template = await templateOf(server, renderer);
  const experts = facts.reportsExperts && facts.expertShape !== null;
  const found = { facts, chat, native, tokenInput, renderer, template, parsers, salt, experts, canReadText };
  const capabilities: EngineCapabilities = {
    token_ids: true,
    token_input: tokenInput,
    version_spans: chat.versionSpans || native?.versionSpans === true,
    pause,
    abort,
    cache_salt: salt === 'honoured',
    notes: [...notesOf({ ...found, pause, abort }), ...logprobs.notes],
    template,
  };
  return { ...found, opening, logprobsMode: logprobs.mode, capabilities };
}

function tokenInputOf(
  chat: ChatFeatures,
  native: NativeFeatures | null,
  canReadText: boolean,
  forceNative: boolean,
): TokenInput {
  if (chat.inputIds && !forceNative) return 'input_ids';
  return native !== null && canReadText ? 'generate' : 'none';
}

const PROBE_TOOLS = [{ type: 'function', function: { name: 'look', parameters: { type: 'object' } } }];
const separatedSchema = z.looseObject({ reasoning_text: z.string().nullish(), text: z.string().nullish() });

/** Word that the probes send to the server's parsers. It is ordinary reply text, and no chat template contains it. */
const PROBE_WORD = 'yes';

/**
 * Maximum number of tokens at the end of the generation prompt that are tried as the opening of a thinking block. Such an opening has only
 * a few tokens.
 */
const MAX_OPENING_TOKENS = 16;

type ParserFeatures = { readonly canReadText: boolean; readonly opening: string };

const CANNOT_READ: ParserFeatures = { canReadText: false, opening: '' };

async function probeParsers(
  server: EngineServer,
  parsers: Parsers,
  renderer: PromptRenderer | null,
): Promise<ParserFeatures> {
  const { tools, reasoning } = parsers;
  const body = { text: PROBE_WORD, tools: PROBE_TOOLS, tool_call_parser: tools };
  if (tools !== null && !(await accepts(server, '/parse_function_call', body))) return CANNOT_READ;
  if (reasoning === null) return { canReadText: true, opening: '' };
  if ((await endsInThinking(server, reasoning, PROBE_WORD)) === null) return CANNOT_READ;
  return { canReadText: true, opening: await openingOf(server, reasoning, renderer) };
}

/**
 * Finds the shortest end of the generation prompt after which the parser treats a word as thinking. Resolves with an empty string when no
 * end has this effect.
 */
async function openingOf(server: EngineServer, parser: string, renderer: PromptRenderer | null): Promise<string> {
  if (renderer === null || renderer.generationPrompt === null) return '';
  const ids = renderer.generationPrompt;
  for (let length = 0; length <= Math.min(ids.length, MAX_OPENING_TOKENS); length++) {
    const end = ids.subarray(ids.length - length);
    const text =
      length === 0 ? '' : await server.withDeadline(PROBE_TIMEOUT_MS, (signal) => renderer.detokenize(end, signal));
    if ((await endsInThinking(server, parser, text + PROBE_WORD)) !== true) continue;
    // Trailing white space is dropped if the parser does not need it, because it would become part of the thinking.
    const trimmed = text.trimEnd();
    return (await endsInThinking(server, parser, trimmed + PROBE_WORD)) === true ? trimmed : text;
  }
  return '';
}

/** Whether the reasoning parser treats the probe word at the end of `text` as thinking; `null` when the server cannot parse the text. */
async function endsInThinking(server: EngineServer, parser: string, text: string): Promise<boolean | null> {
  try {
    const body = JSON.stringify({ text, reasoning_parser: parser });
    const parsed = await server.withDeadline(PROBE_TIMEOUT_MS, (signal) =>
      server.call('/separate_reasoning', body, null, separatedSchema, signal),
    );
    return parsed.reasoning_text?.includes(PROBE_WORD) === true && parsed.text?.includes(PROBE_WORD) !== true;
  } catch (error) {
    if (hasAnswered(error)) return null;
    throw error;
  }
}

/** HTTP status of a server for a route that exists but does not allow the method of the request. */
const WRONG_METHOD = 405;

async function accepts(server: EngineServer, path: string, body: object): Promise<boolean> {
  const { status } = await server.controlPost(path, JSON.stringify(body));
  return status === 200;
}

/** Time limit of one probe request, such as a rendering of a short conversation. */
const PROBE_TIMEOUT_MS = 10_000;

/**
 * Determines the chat template's properties. A conversation to which the server answers with an error counts as refused by the template.
 */
async function templateOf(server: EngineServer, renderer: PromptRenderer | null): Promise<TemplateFacts> {
  if (renderer === null || renderer.generationPrompt === null) return UNKNOWN_TEMPLATE;
  return probeTemplate(async (texts, options) => {
    try {
      return await server.withDeadline(PROBE_TIMEOUT_MS, (signal) => renderer.render(texts, options, signal));
    } catch (error) {
      if (!hasAnswered(error)) throw error;
      throw new FloeError('engine_rejected', error.message, error.details, error);
    }
  });
}

type Notable = Omit<Profile, 'capabilities' | 'opening' | 'logprobsMode'> & {
  readonly pause: boolean;
  readonly abort: boolean;
};

function notesOf(found: Notable): string[] {
  const { chat, facts, renderer } = found;
  const notes = [
    `token ids: ${chat.idSource}`,
    chat.streamFlags === null ? 'replies arrive whole' : 'streams are exact',
  ];
  if (facts.version !== null) notes.push(`SGLang ${facts.version}`);
  const noteIf = (holds: boolean, note: string): void => {
    if (holds) notes.push(note);
  };
  noteIf(facts.incrementalStreams, '/generate streams pieces');
  noteIf(renderer === null, '/tokenize takes no messages, so that prompts cannot be rendered');
  noteIf(
    renderer?.generationPrompt === null,
    "the template's generation prompt cannot be determined, so that no turn is spliced",
  );
  noteIf(chat.inputIds, 'chat completions take input_ids');
  noteIf(found.native !== null, '/generate reports ids');
  noteIf(found.native?.seed === false, '/generate does not support seeds');
  noteIf(found.parsers.tools === null, 'it has no tool-call parser');
  noteIf(found.parsers.reasoning === null, 'it has no reasoning parser');
  noteIf(
    !found.canReadText,
    'it does not parse text independently of sampling, so that interrupted replies are not resumed',
  );
  noteIf(!found.abort, 'calls cannot be aborted by id');
  noteIf(!found.pause, 'it cannot be paused');
  noteIf(found.salt === 'accepted', 'whether it honours cache_salt cannot be determined');
  noteIf(
    facts.reportsExperts && !found.experts,
    'routed experts are not requested, because neither layers nor experts per token are reported',
  );
  return notes;
}
