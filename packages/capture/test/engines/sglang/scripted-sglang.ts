import { samplingSchema } from '@floe-rl/core/schema';
import type { GenerateRequest, PromptIds } from '../../../src/engines/engine.ts';
import { type Handler, json, type Received, ScriptedServer, sendStream } from '../scripted-server.ts';

export type Age = 'meta_info' | 'token_ids' | 'sglext' | 'stream_ids';

/** Features that a scripted SGLang server supports, and the reply that it samples. */
export type Script = {
  age: Age;
  inputIds: boolean;
  generate: boolean;
  chatTokenize: boolean;
  /** Whether `/tokenize` supports the field `add_generation_prompt`. Without this support it always adds the generation prompt. */
  promptField: boolean;
  parsers: boolean;
  /** Whether streams omit the log-probability of the last token, as some releases of SGLang do when this token has no text. */
  losesLast: boolean;
  seeds: boolean;
  echo: boolean;
  serverInfo: Record<string, unknown>;
  modelInfo: Record<string, unknown>;
  ids: number[];
  logprobs: unknown[] | null;
  text: string;
  finish: Record<string, unknown>;
  meta: Record<string, unknown>;
  /** Changes the reply to a call that has a request id (`rid`). Probe calls have none, so their replies are not changed. */
  spoil: (reply: Record<string, unknown>) => unknown;
  /** Handler that answers calls with a request id (`rid`) instead of the scripted reply; `null` to send the scripted reply. */
  answer: ((received: Received) => void) | null;
};

const DEFAULTS: Script = {
  age: 'token_ids',
  inputIds: true,
  generate: true,
  chatTokenize: true,
  promptField: false,
  parsers: true,
  losesLast: false,
  seeds: true,
  echo: true,
  serverInfo: { version: '0.5.15', tool_call_parser: 'qwen25', reasoning_parser: 'qwen3' },
  modelInfo: { weight_version: 'default' },
  ids: [11, 12, 2],
  logprobs: null,
  text: 'Hello.',
  finish: { type: 'stop', matched: 2 },
  meta: {},
  spoil: (reply) => reply,
  answer: null,
};

/** The ids that open the assistant's turn. */
const GENERATION_PROMPT = [1, 103];

const ROLE_IDS: Readonly<Record<string, number>> = { system: 101, user: 102, assistant: 103, tool: 104 };

/**
 * Returns the prompt ids of a conversation. Each message consists of an opening id, a role id, one id per character and two closing ids.
 * Every rendering ends with the generation prompt.
 */
export function promptIdsOf(messages: readonly { role: string; content?: string | null }[]): number[] {
  const turns = messages.flatMap(({ role, content }) => [
    1,
    ROLE_IDS[role] ?? 105,
    ...Array.from(content ?? '', (letter) => 200 + (letter.codePointAt(0) ?? 0)),
    2,
    3,
  ]);
  return [...turns, ...GENERATION_PROMPT];
}

/** A loopback server with SGLang's API that behaves as its field `script` specifies. */
export class SglangScript {
  readonly http: ScriptedServer;
  script: Script;

  constructor(over: Partial<Script> = {}) {
    this.script = { ...DEFAULTS, ...over };
    this.http = new ScriptedServer((received) => this.own(received, (each) => this.chat(each)));
    this.http.onTokenize = ({ body, response }) => {
      const { messages } = body as { messages?: { role: string; content: string }[] };
      const open = promptIdsOf(messages ?? []);
      const isClosed = this.script.promptField && body.add_generation_prompt === false;
      const tokens = isClosed ? open.slice(0, -GENERATION_PROMPT.length) : open;
      if (this.script.chatTokenize) json(response, 200, { tokens, count: tokens.length, max_model_len: 4096 });
      else json(response, 422, { detail: 'prompt: Field required' });
    };
    const done: Handler = ({ response }) => json(response, 200, {});
    this.http.routes = {
      'GET /server_info': ({ response }) => json(response, 200, this.script.serverInfo),
      'GET /model_info': ({ response }) => json(response, 200, this.script.modelInfo),
      'GET /metrics': ({ response }) => {
        response.writeHead(200, { 'content-type': 'text/plain' }).end('sglang:num_running_reqs 1\n');
      },
      '/pause_generation': done,
      '/continue_generation': done,
      '/abort_request': done,
      '/detokenize': ({ body, response }) =>
        json(response, 200, { text: (body.tokens as number[]).map((id) => `<${id}>`).join('') }),
      '/separate_reasoning': this.parsing(separate),
      '/parse_function_call': this.parsing(parseCalls),
      '/generate': (received) => {
        if (this.script.generate) this.own(received, (each) => this.native(each));
        else json(received.response, 404, { detail: 'Not Found' });
      },
    };
  }

  /** Returns the received calls that have a request id (`rid`). Probe calls have none and are left out. */
  calls(path = '/v1/chat/completions'): Received[] {
    return this.http.received.filter((received) => received.path === path && 'rid' in received.body);
  }

  private own(received: Received, answer: (received: Received) => void): void {
    if ('rid' in received.body && this.script.answer) this.script.answer(received);
    else answer(received);
  }

  private parsing(parse: (text: string) => object): Handler {
    return ({ body, response }) => {
      if (this.script.parsers) json(response, 200, parse(String(body.text)));
      else json(response, 404, { detail: 'Not Found' });
    };
  }

  private chat(received: Received): void {
    const { body, response } = received;
    const { script } = this;
    const sentCall = ['return_token_ids', 'return_meta_info', 'return_prompt_token_ids'].some((flag) => body[flag]);
    if (body.stream === true && sentCall && !(script.age === 'stream_ids' && body.return_token_ids)) {
      json(response, 400, { object: 'error', message: 'not supported with streaming', code: 400 });
      return;
    }
    const reply = this.chatReply(body);
    if (body.stream === true) sendStream(response, this.chunks(body, reply));
    else json(response, 200, 'rid' in body ? script.spoil(reply) : reply);
  }

  /**
   * Makes a chat completion. The token ids are in the fields that the simulated SGLang release uses and that the flags in `body` request.
   */
  chatReply(body: Record<string, unknown>): Record<string, unknown> {
    const { script } = this;
    const promptIds = this.promptOf(body);
    const { ids } = script;
    const older = script.age !== 'meta_info';
    const newer = script.age === 'sglext' || script.age === 'stream_ids';
    const parsed = parseCalls(script.text);
    const calls = parsed.calls.map(({ name, parameters }, index) => ({
      id: `call_${index}`,
      index,
      type: 'function',
      function: { name, arguments: parameters },
    }));
    const finish = calls.length > 0 ? { type: 'tool_calls', matched: null } : script.finish;
    return {
      id: body.rid ?? 'someone',
      object: 'chat.completion',
      model: body.model,
      choices: [
        {
          index: 0,
          message: { role: 'assistant', content: parsed.normal_text, tool_calls: calls.length > 0 ? calls : null },
          logprobs: { content: this.logprobs().map((logprob) => ({ token: 't', logprob, bytes: [116] })) },
          finish_reason: finish.type,
          matched_stop: finish.matched ?? null,
          ...((older && body.return_token_ids) || body.return_prompt_token_ids ? { prompt_token_ids: promptIds } : {}),
          ...(older && body.return_token_ids ? { token_ids: ids } : {}),
          ...(body.return_meta_info ? { meta_info: { ...this.meta(promptIds), finish_reason: finish } } : {}),
        },
      ],
      usage: { prompt_tokens: promptIds.length, completion_tokens: ids.length },
      ...(newer && body.return_output_ids_in_sglext ? { sglext: { input_ids: promptIds, output_ids: [ids] } } : {}),
    };
  }

  private chunks(body: Record<string, unknown>, reply: Record<string, unknown>): object[] {
    const { script } = this;
    const ids = script.ids;
    const promptIds = this.promptOf(body);
    const chunk = (fields: object, top: object = {}) => ({
      id: reply.id,
      object: 'chat.completion.chunk',
      model: body.model,
      choices: [{ index: 0, finish_reason: null, ...fields }],
      ...top,
    });
    const answers = script.age === 'stream_ids' && body.return_token_ids === true;
    const texts = ids.map((_, index) => (index === ids.length - 1 ? '' : index === 0 ? script.text : ''));
    const pieces = ids.map((id, index) => {
      const silent = script.losesLast && index === ids.length - 1;
      const logprobs = silent ? {} : { logprobs: { content: [{ token: 't', logprob: this.logprobs()[index] }] } };
      return chunk({ delta: { content: texts[index] }, ...logprobs, ...(answers ? { token_ids: [id] } : {}) });
    });
    const ended = chunk({ delta: {}, finish_reason: script.finish.type, matched_stop: script.finish.matched ?? null });
    const head = chunk({
      delta: { role: 'assistant', content: '' },
      ...(answers ? { prompt_token_ids: promptIds } : {}),
    });
    const all: object[] = [head, ...pieces, ended];
    if (reply.sglext !== undefined) all.push({ ...chunk({}), choices: [], sglext: reply.sglext });
    const usage = { prompt_tokens: promptIds.length, completion_tokens: ids.length };
    return [...all, { ...chunk({}), choices: [], usage }];
  }

  private native(received: Received): void {
    const { body, response } = received;
    const params = body.sampling_params as Record<string, unknown>;
    if (!this.script.seeds && 'sampling_seed' in params) {
      json(response, 500, { error: { message: "unexpected keyword argument 'sampling_seed'" } });
      return;
    }
    const reply = this.nativeReply(body);
    json(response, 200, 'rid' in body ? this.script.spoil(reply) : reply);
  }

  nativeReply(body: Record<string, unknown>): Record<string, unknown> {
    const { script } = this;
    const promptIds = this.promptOf(body);
    return {
      text: script.text,
      output_ids: script.ids,
      ...(script.echo ? { prompt_token_ids: promptIds } : {}),
      meta_info: { ...this.meta(promptIds), id: body.rid ?? 'someone', finish_reason: script.finish },
    };
  }

  private promptOf(body: Record<string, unknown>): number[] {
    const given = body.input_ids as number[] | undefined;
    const taken = this.script.inputIds || 'sampling_params' in body;
    return given && taken ? given : promptIdsOf(body.messages as { role: string; content: string }[]);
  }

  private meta(promptIds: readonly number[]): Record<string, unknown> {
    const { ids, meta } = this.script;
    return {
      prompt_tokens: promptIds.length,
      completion_tokens: ids.length,
      cached_tokens: 0,
      weight_version: this.script.modelInfo.weight_version,
      output_token_logprobs: ids.map((id, index) => [this.logprobs()[index], id, null]),
      ...meta,
    };
  }

  private logprobs(): unknown[] {
    return this.script.logprobs ?? this.script.ids.map((_, index) => -0.25 * (index + 1));
  }
}

function separate(text: string): object {
  const end = text.indexOf('</think>');
  if (!text.startsWith('<think>')) return { reasoning_text: '', text };
  if (end < 0) return { reasoning_text: text.slice(7), text: '' };
  return { reasoning_text: text.slice(7, end), text: text.slice(end + 8) };
}

type ParsedCalls = { normal_text: string; calls: { tool_index: number; name: string; parameters: string }[] };

/** Parses tool calls from text, in which they are written `[[name arguments]]`. */
function parseCalls(text: string): ParsedCalls {
  const calls = [...text.matchAll(/\[\[(\w+) (.*?)\]\]/g)].map(([, name = '', parameters = ''], index) => ({
    tool_index: index,
    name,
    parameters,
  }));
  return { normal_text: text.replace(/\[\[\w+ .*?\]\]/g, ''), calls };
}

export function askRequest(over: Partial<GenerateRequest> = {}): GenerateRequest {
  return {
    completionId: 'cpl_mine',
    sessionId: 'ses_1',
    pool: 'default',
    prompt: null,
    resumeFrom: null,
    policyVersion: null,
    messageTexts: ['{"role":"user","content":"hi  \\u00e9"}'],
    tools: [],
    toolsText: '[]',
    toolChoice: null,
    parallelToolCalls: null,
    responseFormat: null,
    sampling: samplingSchema.parse({ temperature: 0.7 }),
    maxTokens: 50,
    stop: [],
    seed: 9,
    ...over,
  };
}

export function prompted(ids: readonly number[]): PromptIds {
  return { ids: Int32Array.from(ids), json: Buffer.from(ids.join(',')) };
}
