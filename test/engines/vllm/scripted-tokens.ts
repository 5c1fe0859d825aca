import type { GenerateRequest } from '../../../src/engines/engine.ts';
import { samplingSchema } from '../../../src/schema/index.ts';
import { json, type Received, type ScriptedServer } from '../scripted-server.ts';

export const GENERATE = '/inference/v1/generate';
export const RENDER = '/v1/chat/completions/render';
export const DERENDER = '/v1/chat/completions/derender';

export type Json = Record<string, unknown>;

/** How a scripted server that accepts ids answers. The options change its replies. */
export type TokenOptions = {
  responseIds?: number[];
  generated?: (reply: Json, received: Received) => unknown;
  message?: Json;
  /** Whether the parsers work on ids and do not show the closing id. By default they work on text. */
  readsIds?: boolean;
  derendered?: (reply: Json, received: Received) => unknown;
  rendered?: (reply: Json, received: Received) => unknown;
};

/** The id that closes a turn and ends the server's reply. */
const CLOSE = 2;

/** Adds the routes for prompts of ids to a scripted server. Its template has an id for each byte of a message, and a closing id. */
export function serveTokens(server: ScriptedServer, options: TokenOptions = {}): void {
  const { responseIds = [11, 12, 2], message = { role: 'assistant', content: 'Hello.' } } = options;
  const same = (reply: Json): unknown => reply;
  server.routes[GENERATE] = (received) =>
    json(received.response, 200, (options.generated ?? same)(generateReply(received, responseIds), received));
  server.routes[DERENDER] = (received) => {
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

/** Returns the reply with fields of its only choice replaced. */
export function withChoice(reply: Json, over: object): Json {
  const [choice] = reply.choices as object[];
  return { ...reply, choices: [{ ...choice, ...over }] };
}

/** Returns the requests that a server received at a path, without those of probes. */
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
    cacheSalt: null,
    ...over,
  };
}

/** Returns the ids that a derender request contains. */
export function derenderedIds(received: Received | undefined): number[] | undefined {
  type Body = { generate_response: { choices: { token_ids: number[] }[] } };
  return (received?.body as Body | undefined)?.generate_response.choices[0]?.token_ids;
}
