import { samplingSchema } from '@floe-rl/core/schema';
import type { GenerateRequest } from '../../../src/engines/engine.ts';
import { json, type Received, type ScriptedServer } from '../scripted-server.ts';

export const GENERATE = '/inference/v1/generate';
export const RENDER = '/v1/chat/completions/render';
export const DERENDER = '/v1/chat/completions/derender';

export type Json = Record<string, unknown>;

/** Replies of a scripted server that accepts prompts of token ids. Each option changes one of its replies. */
export type TokenOptions = {
  responseIds?: number[];
  generated?: (reply: Json, received: Received) => unknown;
  message?: Json;
  /**
   * Whether the server's parsers work on token ids and leave the turn-closing token out of the parsed content. By default they work on
   * text, and the content ends with that token's text.
   */
  readsIds?: boolean;
  derendered?: (reply: Json, received: Received) => unknown;
  rendered?: (reply: Json, received: Received) => unknown;
};

/** The token id that closes a turn and ends the server's reply. */
const CLOSE = 2;

/** Adds the endpoints for prompts of token ids to a scripted server. Its template renders a message to one id per byte and a closing id. */
export function serveTokens(server: ScriptedServer, options: TokenOptions = {}): void {
  const { responseIds = [11, 12, 2], message = { role: 'assistant', content: 'Hello.' } } = options;
  const same = (reply: Json): unknown => reply;
  server.routes[GENERATE] = (received) =>
    json(received.response, 200, (options.generated ?? same)(generateReply(received, responseIds), received));
  server.routes[DERENDER] = (received) => {
    if (received.body.stream === true) return json(received.response, 200, derenderedChunk(received, message));
    const { generate_response: response } = received.body as {
      generate_response: { choices: { token_ids: number[] }[] };
    };
    const sent = response.choices[0]?.token_ids ?? [];
    const shows = sent.at(-1) === CLOSE && options.readsIds !== true;
    const end = shows ? { content: `${String(message.content)}<|close|>` } : {};
    const reply = {
      id: String(received.headers['x-request-id'] ?? ''),
      model: 'toy',
      choices: [{ index: 0, message: { ...message, ...end }, finish_reason: 'stop' }],
      usage: { prompt_tokens: 0, completion_tokens: sent.length, total_tokens: sent.length },
    };
    json(received.response, 200, (options.derendered ?? same)(reply, received));
  };
  server.onTokenize = ({ response, body }) => {
    const tokens = 'prompt' in body ? [5] : chatIds(body);
    json(response, 200, { count: tokens.length, max_model_len: 4096, tokens });
  };
  server.routes[RENDER] = (received) => {
    if (!('messages' in received.body)) return json(received.response, 400, { error: { message: 'Field required' } });
    const reply = { token_ids: chatIds(received.body), sampling_params: { structured_outputs: null }, features: null };
    json(received.response, 200, (options.rendered ?? same)(reply, received));
  };
}

/** Makes the reply of the parser for streams, which shows the whole message in one chunk. */
function derenderedChunk(received: Received, delta: Json): Json {
  const id = String(received.headers['x-request-id'] ?? '');
  return { chunk: { id, model: 'toy', choices: [{ index: 0, delta, finish_reason: null }] }, stream_state: {} };
}

function chatIds({ messages, add_generation_prompt: open }: Json): number[] {
  const turns = (messages as object[]).map((message) => [...Buffer.from(JSON.stringify(message))]);
  const ids = turns.flatMap((bytes) => [...bytes.map((byte) => byte + 10), CLOSE]);
  return open === false ? ids : [...ids, 3];
}

function generateReply(received: Received, responseIds: number[]): Json {
  const prompt = received.body.token_ids as number[];
  return {
    request_id: `generate-tokens-${String(received.headers['x-request-id'])}`,
    model: 'toy',
    created: 1,
    output_mode: 'tokens',
    choices: [
      {
        index: 0,
        token_ids: responseIds,
        logprobs: {
          content: responseIds.map((id, i) => ({ token_id: id, logprob: -0.25 * (i + 1), rank: 1, top_logprobs: [] })),
        },
        finish_reason: 'stop',
        weight_versions: null,
        routed_experts: null,
      },
    ],
    usage: {
      prompt_tokens: prompt.length,
      completion_tokens: responseIds.length,
      total_tokens: prompt.length + responseIds.length,
      prompt_tokens_details: { cached_tokens: 3 },
    },
    prompt_token_ids: prompt,
  };
}

/** Returns a copy of the reply in which `over` replaces fields of the only choice. */
export function withChoice(reply: Json, over: object): Json {
  const [choice] = reply.choices as object[];
  return { ...reply, choices: [{ ...choice, ...over }] };
}

/** Returns the requests that the server received at `path`, without the requests of probes. */
export function callsOf(server: ScriptedServer, path: string): Received[] {
  return server.received.filter(
    (received) => received.path === path && received.headers['x-request-id'] === 'cpl_mine',
  );
}

export function tokenRequest(over: Partial<GenerateRequest> = {}): GenerateRequest {
  const ids = Int32Array.of(1, 5, 6, 7);
  return {
    completionId: 'cpl_mine',
    sessionId: 'ses_1',
    pool: 'default',
    messageTexts: ['{"role":"user","content":"hi"}'],
    tools: [],
    toolsText: '[]',
    toolChoice: null,
    parallelToolCalls: null,
    responseFormat: null,
    sampling: samplingSchema.parse({ temperature: 0.7, top_k: 40 }),
    maxTokens: 50,
    stop: [],
    seed: 9,
    prompt: { ids, json: Buffer.from(ids.join(',')) },
    resumeFrom: null,
    policyVersion: null,
    ...over,
  };
}

/** Returns the sampled ids that a request to `/v1/chat/completions/derender` contains. */
export function derenderedIds(received: Received | undefined): number[] | undefined {
  type Body = { generate_response: { choices: { token_ids: number[] }[] } };
  return (received?.body as Body | undefined)?.generate_response.choices[0]?.token_ids;
}
