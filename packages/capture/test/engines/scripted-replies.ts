import { VirtualClock } from '@floe-rl/core';
import { engineSpecSchema } from '@floe-rl/core/schema';
import type { Engine, GenerateReply, GenerateRequest } from '../../src/engines/engine.ts';
import { createOpenaiEngine } from '../../src/engines/openai/engine.ts';
import { createSglangEngine } from '../../src/engines/sglang/engine.ts';
import { createVllmEngine } from '../../src/engines/vllm/engine.ts';
import type { ReplyDelta } from '../../src/reply.ts';
import { json, type Received, ScriptedServer, sendStream, vllmReply } from './scripted-server.ts';
import { askRequest, promptIdsOf, SglangScript } from './sglang/scripted-sglang.ts';
import { GENERATE, serveTokens, tokenRequest } from './vllm/scripted-tokens.ts';

export type Json = Record<string, unknown>;

const IDS = [11, 12, 2];
const LOGPROBS = [-0.25, -0.5, -0.75];
const PIECES = ['Hel', 'lo.', ''];
const noop = (): void => {};

/** A connected engine, whose server sends the reply that a test makes. */
export type Connected = {
  readonly engine: Engine;
  /** Calls the engine. The server answers with `answer`. */
  ask(answer: (received: Received) => void, over?: Partial<GenerateRequest>): Promise<GenerateReply>;
  close(): Promise<void>;
};

/** What all engines' forms of replies have in common: whether there are token ids, and whether the server sends the message itself. */
type Form = { readonly name: string; readonly tokens: boolean; readonly chat: boolean; connect(): Promise<Connected> };

export type StreamForm = Form & {
  /** Whether a stream may end without `[DONE]`. */
  readonly endsWithoutDone: boolean;
  /** Whether a reply that names another call or another model is refused. */
  readonly checksOwner: boolean;
  /** Whether a chunk that adds nothing may repeat the finish reason. */
  readonly repeatsFinish: boolean;
  /** Makes the stream of a valid reply. */
  stream(received: Received): Stream;
};

export type WholeForm = Form & {
  /** Makes a reply that is not streamed. */
  reply(received: Received, parts: WholeParts): Json;
};

export type WholeParts = {
  readonly ids?: readonly number[];
  readonly logprobs?: readonly unknown[];
  readonly finish?: string;
  readonly completionTokens?: number | null;
  readonly message?: Json;
};

/** The chunks of a stream by their purpose, and functions that make further ones. */
export type Stream = {
  readonly head: Json;
  readonly tokens: readonly Json[];
  readonly finish: Json;
  /** Chunks after the finish, up to the usage. */
  readonly rest: readonly Json[];
  /** Data of the last event; an empty text when there is none. */
  readonly end: string;
  /** Makes a chunk with one choice. `top` are fields beside the choices. */
  chunk(choice: Json, top?: Json): Json;
};

export function send({ response }: Received, { head, tokens, finish, rest, end }: Stream): void {
  sendStream(response, [head, ...tokens, finish, ...rest], end);
}

type Shape = {
  readonly id: (received: Received) => Json;
  readonly delta: boolean;
  readonly prompt: (received: Received) => readonly number[];
  readonly promptIn: 'chunk' | 'choice' | 'extension' | 'nowhere';
  readonly idsIn: 'chunks' | 'extension' | 'nowhere';
};

function streamOf(received: Received, shape: Shape): Stream {
  const prompt = shape.prompt(received);
  const inChunks = shape.idsIn === 'chunks';
  const chunk = (choice: Json, top: Json = {}): Json => ({
    ...shape.id(received),
    choices: [{ index: 0, ...(shape.delta ? { delta: {} } : {}), finish_reason: null, ...choice }],
    ...top,
  });
  const ids = { prompt_token_ids: prompt };
  const usage = { prompt_tokens: prompt.length, completion_tokens: IDS.length };
  const extension = { sglext: { input_ids: prompt, output_ids: [IDS] } };
  return {
    head: chunk(shape.promptIn === 'choice' ? ids : {}, shape.promptIn === 'chunk' ? ids : {}),
    tokens: IDS.map((id, index) =>
      chunk({
        ...(shape.delta ? { delta: { content: PIECES[index] } } : {}),
        ...(inChunks ? { token_ids: [id] } : {}),
        ...(shape.idsIn === 'nowhere' ? {} : { logprobs: { content: [{ token: 't', logprob: LOGPROBS[index] }] } }),
      }),
    ),
    finish: chunk({ finish_reason: 'stop' }),
    rest: [
      ...(shape.idsIn === 'extension' ? [{ ...chunk({}), choices: [], ...extension }] : []),
      { ...chunk({}), choices: [], usage },
    ],
    end: '[DONE]',
    chunk,
  };
}

const messagesOf = ({ body }: Received) => body.messages as { role: string; content: string }[];
const chatId = ({ headers }: Received): Json => ({ id: `chatcmpl-${String(headers['x-request-id'])}`, model: 'toy' });
const ridOf = ({ body }: Received): Json => ({ id: body.rid, model: 'toy' });

async function withServer(
  make: (server: ScriptedServer) => Promise<Engine>,
  answerAt: (server: ScriptedServer, answer: (received: Received) => void) => void,
  request: (over: Partial<GenerateRequest>) => GenerateRequest,
): Promise<Connected> {
  const server = new ScriptedServer((received) => json(received.response, 200, vllmReply(received)));
  await server.listen();
  const engine = await make(server);
  return {
    engine,
    ask: (answer, over = {}) => {
      answerAt(server, answer);
      return engine.generate(request(over), new AbortController().signal);
    },
    close: async () => {
      await engine.close();
      await server.close();
    },
  };
}

const chatAnswer = (server: ScriptedServer, answer: (received: Received) => void): void => {
  server.onChat = answer;
};

const vllm = () =>
  withServer(
    (server) => createVllmEngine(engineSpecSchema.parse({ base_url: server.baseUrl }), { clock: new VirtualClock() }),
    chatAnswer,
    (over) => askRequest(over),
  );

const vllmByIds = () =>
  withServer(
    (server) => {
      serveTokens(server);
      return createVllmEngine(engineSpecSchema.parse({ base_url: server.baseUrl }), { clock: new VirtualClock() });
    },
    (server, answer) => {
      server.routes[GENERATE] = answer;
    },
    (over) => tokenRequest(over),
  );

const openai = (token_ids: 'auto' | 'off') => () =>
  withServer(
    (server) =>
      createOpenaiEngine(engineSpecSchema.parse({ kind: 'openai', base_url: server.baseUrl, token_ids }), {
        clock: new VirtualClock(),
      }),
    chatAnswer,
    (over) => askRequest(over),
  );

const sglang = (age: 'token_ids' | 'sglext' | 'stream_ids', prompt?: readonly number[]) => async () => {
  const server = new SglangScript({ age, inputIds: prompt === undefined });
  await server.http.listen();
  const spec = engineSpecSchema.parse({ kind: 'sglang', base_url: server.http.baseUrl });
  const engine = await createSglangEngine(spec, { clock: new VirtualClock() });
  const ids = prompt && { prompt: { ids: Int32Array.from(prompt), json: Buffer.from(prompt.join(',')) } };
  return {
    engine,
    ask: (answer: (received: Received) => void, over: Partial<GenerateRequest> = {}) => {
      server.script.answer = answer;
      return engine.generate(askRequest({ ...ids, ...over }), new AbortController().signal);
    },
    close: async () => {
      await engine.close();
      await server.http.close();
    },
  };
};

const listed = (received: Received) => promptIdsOf(messagesOf(received));
const strict = { endsWithoutDone: false, checksOwner: true, repeatsFinish: false };
const requestId = ({ headers }: Received): Json => ({
  request_id: `generate-tokens-${String(headers['x-request-id'])}`,
  model: 'toy',
});

/** The forms of streams that floe reads. */
export const streamForms: readonly StreamForm[] = [
  {
    ...{ name: "vLLM's chat completions", tokens: true, chat: true, ...strict, connect: vllm },
    stream: (received) =>
      streamOf(received, { id: chatId, delta: true, prompt: () => [1, 5], promptIn: 'chunk', idsIn: 'chunks' }),
  },
  {
    ...{ name: "vLLM's replies to prompts of ids", tokens: true, chat: false, ...strict, connect: vllmByIds },
    stream: (received) => {
      const prompt = (): number[] => received.body.token_ids as number[];
      return streamOf(received, { id: requestId, delta: false, prompt, promptIn: 'chunk', idsIn: 'chunks' });
    },
  },
  {
    ...{ name: "SGLang's chat completions with ids in chunks", tokens: true, chat: true, ...strict },
    connect: sglang('stream_ids'),
    stream: (received) =>
      streamOf(received, { id: ridOf, delta: true, prompt: listed, promptIn: 'choice', idsIn: 'chunks' }),
  },
  {
    ...{ name: "SGLang's chat completions with ids at the end", tokens: true, chat: true, ...strict },
    connect: sglang('sglext'),
    stream: (received) =>
      streamOf(received, { id: ridOf, delta: true, prompt: listed, promptIn: 'extension', idsIn: 'extension' }),
  },
  {
    ...{ name: "OpenAI-compatible APIs' chat completions", tokens: false, chat: true, connect: openai('off') },
    ...{ endsWithoutDone: true, checksOwner: false, repeatsFinish: true },
    stream: (received) =>
      streamOf(received, {
        ...{ id: () => ({ id: 'gen-1', model: 'toy-2' }), delta: true, prompt: () => [1, 5] },
        ...{ promptIn: 'nowhere', idsIn: 'nowhere' },
      }),
  },
];

const contentOf = (values: readonly unknown[]) => ({
  content: values.map((logprob) => ({ token: 't', logprob, bytes: [116], top_logprobs: [] })),
});

/** Makes a chat completion with ids, as vLLM and servers made from it write it. */
function chatReply(received: Received, { ids = IDS, logprobs, finish = 'stop', ...parts }: WholeParts): Json {
  const { completionTokens = ids.length, message = { content: 'Hello.' } } = parts;
  const prompt = [1, 5];
  return {
    ...chatId(received),
    choices: [
      {
        ...{ index: 0, message, finish_reason: finish, token_ids: ids },
        logprobs: contentOf(logprobs ?? ids.map((_, index) => LOGPROBS[index])),
      },
    ],
    ...usageOf(prompt, completionTokens),
    prompt_token_ids: prompt,
  };
}

function usageOf(prompt: readonly number[], completionTokens: number | null): Json {
  return completionTokens === null
    ? {}
    : { usage: { prompt_tokens: prompt.length, completion_tokens: completionTokens } };
}

function generatedReply(received: Received, parts: WholeParts): Json {
  const { choices, model, usage } = chatReply(received, parts) as { choices: Json[]; model: string; usage: Json };
  const prompt = received.body.token_ids as number[];
  return {
    ...{ request_id: `generate-tokens-${String(received.headers['x-request-id'])}`, model },
    choices: choices.map(({ message: _, ...choice }) => choice),
    ...(usage === undefined ? {} : { usage: { ...usage, prompt_tokens: prompt.length } }),
    prompt_token_ids: prompt,
  };
}

function sglangReply(received: Received, parts: WholeParts): Json {
  const { choices, usage } = chatReply(received, parts) as { choices: Json[]; usage: Json };
  const prompt = listed(received);
  return {
    ...ridOf(received),
    choices: choices.map((choice) => ({ ...choice, prompt_token_ids: prompt })),
    ...(usage === undefined ? {} : { usage: { ...usage, prompt_tokens: prompt.length } }),
  };
}

function nativeReply(received: Received, parts: WholeParts): Json {
  const { ids = IDS, logprobs = ids.map((_, index) => LOGPROBS[index]), finish = 'stop' } = parts;
  const { completionTokens = ids.length } = parts;
  const prompt = received.body.input_ids as number[];
  return {
    text: 'Hello.',
    output_ids: ids,
    prompt_token_ids: prompt,
    meta_info: {
      ...{ id: received.body.rid, finish_reason: { type: finish }, prompt_tokens: prompt.length },
      ...(completionTokens === null ? {} : { completion_tokens: completionTokens }),
      output_token_logprobs: logprobs.map((logprob, index) => [logprob, ids[index] ?? 2, null]),
    },
  };
}

/** The forms of replies that are not streamed. */
export const wholeForms: readonly WholeForm[] = [
  { name: "vLLM's chat completions", tokens: true, chat: true, connect: vllm, reply: chatReply },
  { name: "vLLM's replies to prompts of ids", tokens: true, chat: false, connect: vllmByIds, reply: generatedReply },
  { name: "SGLang's chat completions", tokens: true, chat: true, connect: sglang('token_ids'), reply: sglangReply },
  {
    ...{ name: "SGLang's replies to prompts of ids", tokens: true, chat: false },
    ...{ connect: sglang('token_ids', [1, 5, 6]), reply: nativeReply },
  },
  {
    name: 'chat completions with ids of other APIs',
    tokens: true,
    chat: true,
    connect: openai('auto'),
    reply: chatReply,
  },
  { name: 'chat completions without ids', tokens: false, chat: true, connect: openai('off'), reply: chatReply },
];

/** A listener that records what it receives. */
export function recorder() {
  const deltas: ReplyDelta[] = [];
  return { deltas, listener: { started: noop, delta: (delta: ReplyDelta) => void deltas.push(delta) } };
}
