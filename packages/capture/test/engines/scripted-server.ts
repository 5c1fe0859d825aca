import { createServer, type IncomingHttpHeaders, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { LogprobsMode } from '@floe-rl/core/schema';

export type Received = {
  readonly method: string;
  readonly path: string;
  readonly headers: IncomingHttpHeaders;
  readonly body: Record<string, unknown>;
  /** The body of the request as it was received. */
  readonly text: string;
  readonly response: ServerResponse;
};

export type Handler = (received: Received) => void | Promise<void>;

/**
 * A loopback server for tests of engine adapters. It answers with the handlers of a test and records its requests. `/v1/models` and
 * `/weight_info` have default answers. Other paths without a handler in `routes` are answered with 404. A chat completion whose model is
 * not in `models` is also answered with 404, without a call of `onChat`. A chat completion that requests the log-probabilities of likely
 * tokens is the probe of the engine's logprobs mode, which `onLogprobsProbe` answers.
 */
export class ScriptedServer {
  readonly received: Received[] = [];
  version: string | null = null;
  maxModelLen: number | null = 4096;
  /** The models that `/v1/models` lists. The requests in the tests name the first model. */
  models: { id: string; root?: string }[] = [{ id: 'toy' }];
  onChat: Handler;
  onLogprobsProbe: Handler = likelyTokens('processed');
  onTokenize: Handler = ({ response }) =>
    json(response, 200, { count: 7, max_model_len: 4096, tokens: [1, 2, 3, 4, 5, 6, 7] });
  /** Additional handlers, keyed by path without the query. A GET is answered with 405 unless the key is `GET /path`. */
  routes: Record<string, Handler> = {};
  /** Names of unsupported fields: a chat completion with one of them is answered with 400. */
  unknownFields: string[] = [];
  private readonly server: Server;
  private arrivals: { count: number; resolve: () => void }[] = [];

  constructor(onChat: Handler) {
    this.onChat = onChat;
    this.server = createServer((request, response) => {
      const chunks: Buffer[] = [];
      request.on('data', (chunk: Buffer) => chunks.push(chunk));
      request.on('end', () => {
        const text = Buffer.concat(chunks).toString();
        const body = text === '' ? {} : (JSON.parse(text) as Record<string, unknown>);
        const path = request.url ?? '';
        this.answer({ method: request.method ?? '', path, headers: request.headers, body, text, response });
      });
    });
  }

  get baseUrl(): string {
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  /** The chat completions received so far, without {@link logprobsProbes} and without requests for a model that is not in `models`. */
  get chats(): Received[] {
    return this.received.filter(
      (received) => received.path === '/v1/chat/completions' && this.isOwn(received) && !isLogprobsProbe(received),
    );
  }

  /** The probes of the logprobs mode received so far. */
  get logprobsProbes(): Received[] {
    return this.received.filter(isLogprobsProbe);
  }

  listen(): Promise<void> {
    return new Promise((resolve) => this.server.listen(0, '127.0.0.1', resolve));
  }

  /** Resolves when the server has received `count` chat completions in total. */
  arrived(count: number): Promise<void> {
    if (this.chats.length >= count) return Promise.resolve();
    return new Promise((resolve) => this.arrivals.push({ count, resolve }));
  }

  close(): Promise<void> {
    const closed = new Promise<void>((resolve) => {
      this.server.close(() => resolve());
    });
    this.server.closeAllConnections();
    return closed;
  }

  private isOwn({ body }: Received): boolean {
    return this.models.some(({ id }) => id === body.model);
  }

  private answer(received: Received): void {
    this.received.push(received);
    const { method, path, response } = received;
    const [bare = ''] = path.split('?');
    const route = this.routes[`${method} ${bare}`] ?? (method === 'POST' ? this.routes[bare] : undefined);
    if (route !== undefined) {
      void route(received);
    } else if (path === '/v1/models') {
      const data = this.models.map((model) => ({ ...model, max_model_len: this.maxModelLen }));
      json(response, 200, { object: 'list', data });
    } else if (method === 'GET' && (bare in this.routes || bare === '/tokenize')) {
      json(response, 405, { detail: 'Method Not Allowed' });
    } else if (path === '/weight_info') {
      if (this.version === null) json(response, 404, { detail: 'Not Found' });
      else json(response, 200, { weight_version: this.version });
    } else if (path === '/tokenize') {
      void this.onTokenize(received);
    } else if (path !== '/v1/chat/completions') {
      json(response, 404, { detail: 'Not Found' });
    } else if (this.unknownFields.some((field) => field in received.body)) {
      json(response, 400, { error: { message: 'Extra inputs are not permitted' } });
    } else if (!this.isOwn(received)) {
      json(response, 404, { error: { message: `The model ${String(received.body.model)} does not exist.` } });
    } else if (isLogprobsProbe(received)) {
      void this.onLogprobsProbe(received);
    } else {
      const count = this.chats.length;
      for (const waiter of this.arrivals.filter((entry) => entry.count <= count)) waiter.resolve();
      this.arrivals = this.arrivals.filter((entry) => entry.count > count);
      void this.onChat(received);
    }
  }
}

function isLogprobsProbe({ body }: Received): boolean {
  return typeof body.top_logprobs === 'number' && body.top_logprobs > 0;
}

/** Makes a handler that returns the likely tokens of one position, with log-probabilities of this mode at the request's temperature. */
export function likelyTokens(mode: LogprobsMode): Handler {
  return ({ body, response }) => {
    const divisor = mode === 'processed' ? Number(body.temperature) : 1;
    const weights = [4, 2.5, 1, 0.5, -3].map((logit) => Math.exp(logit / divisor));
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    const top = weights.map((weight, id) => ({ token: `token_id:${id}`, logprob: Math.log(weight / total) }));
    json(response, 200, likelyTokensReply(top));
  };
}

/** Makes the part of a chat completion that contains the likely tokens of its only position. */
export function likelyTokensReply(top: readonly object[]): object {
  return { choices: [{ logprobs: { content: [{ token: 't', logprob: -1, top_logprobs: top }] } }] };
}

export function json(response: ServerResponse, status: number, body: unknown, headers = {}): void {
  response.writeHead(status, { 'content-type': 'application/json', ...headers });
  response.end(JSON.stringify(body));
}

export type ReplyParts = {
  content?: string | null;
  reasoning?: string;
  toolCalls?: { id: string; name: string; arguments: string }[];
  promptIds?: number[];
  responseIds?: number[];
  logprobs?: unknown[];
  finish?: string;
  stopReason?: number | string | null;
};

/** Makes a valid vLLM reply to the received request. Tests of invalid replies change its fields. */
export function vllmReply(received: Pick<Received, 'headers'>, parts: ReplyParts = {}): Record<string, unknown> {
  const responseIds = parts.responseIds ?? [11, 12, 2];
  const promptIds = parts.promptIds ?? [1, 5, 6, 7];
  const logprobs = parts.logprobs ?? responseIds.map((_, i) => -0.25 * (i + 1));
  return {
    id: `chatcmpl-${String(received.headers['x-request-id'])}`,
    object: 'chat.completion',
    created: 1,
    model: 'toy',
    choices: [
      {
        index: 0,
        message: {
          role: 'assistant',
          content: parts.content === undefined ? 'Hello.' : parts.content,
          ...(parts.reasoning === undefined ? {} : { reasoning: parts.reasoning }),
          tool_calls: (parts.toolCalls ?? []).map(({ id, name, arguments: text }) => ({
            id,
            type: 'function',
            function: { name, arguments: text },
          })),
        },
        logprobs: {
          content: logprobs.map((logprob) => ({ token: 't', logprob, bytes: [116], top_logprobs: [] })),
        },
        finish_reason: parts.finish ?? (parts.toolCalls === undefined ? 'stop' : 'tool_calls'),
        stop_reason: parts.stopReason ?? null,
        token_ids: responseIds,
      },
    ],
    usage: {
      prompt_tokens: promptIds.length,
      completion_tokens: responseIds.length,
      total_tokens: promptIds.length + responseIds.length,
      prompt_tokens_details: { cached_tokens: 2 },
    },
    prompt_token_ids: promptIds,
  };
}

/**
 * Makes the chunks of vLLM's stream for the reply of {@link vllmReply}. The first chunk has the prompt ids. Then each token has a chunk, and
 * the last token's chunk also has the finish reason. The usage comes last.
 */
export function vllmChunks(received: Pick<Received, 'headers'>, parts: ReplyParts = {}): Record<string, unknown>[] {
  const whole = vllmReply(received, parts) as {
    id: string;
    choices: {
      message: {
        content: string | null;
        reasoning?: string;
        tool_calls: { id: string; function: { name: string; arguments: string } }[];
      };
      logprobs: { content: unknown[] };
      finish_reason: string;
      stop_reason: unknown;
      token_ids: number[];
    }[];
    usage: object;
    prompt_token_ids: number[];
  };
  const [choice] = whole.choices;
  if (choice === undefined) throw new Error('a reply without a choice');
  const chunk = (fields: object, top: object = {}): Record<string, unknown> => ({
    id: whole.id,
    object: 'chat.completion.chunk',
    choices: [{ index: 0, logprobs: null, finish_reason: null, ...fields }],
    ...top,
  });
  const { content, reasoning, tool_calls } = choice.message;
  const deltas: object[] = [
    ...pieces(reasoning ?? '').map((text) => ({ reasoning: text })),
    ...pieces(content ?? '').map((text) => ({ content: text })),
    ...tool_calls.flatMap(({ id, function: { name, arguments: text } }, index) => [
      { tool_calls: [{ index, id, type: 'function', function: { name, arguments: '' } }] },
      ...pieces(text).map((part) => ({ tool_calls: [{ index, function: { arguments: part } }] })),
    ]),
  ];
  const ids = choice.token_ids;
  const steps = Math.max(ids.length, deltas.length);
  const chunks = [chunk({ delta: { role: 'assistant', content: '' } }, { prompt_token_ids: whole.prompt_token_ids })];
  for (let i = 0; i < steps; i++) {
    const last = i === steps - 1;
    // Each chunk has one token id; the last chunk has all remaining ids and the finish reason.
    const own = last ? ids.slice(i) : ids.slice(i, i + 1);
    const entries = choice.logprobs.content;
    chunks.push(
      chunk({
        delta: deltas[i] ?? {},
        token_ids: own,
        logprobs: { content: last ? entries.slice(i) : entries.slice(i, i + 1) },
        ...(last ? { finish_reason: choice.finish_reason, stop_reason: choice.stop_reason } : {}),
      }),
    );
  }
  return [...chunks, { id: whole.id, object: 'chat.completion.chunk', choices: [], usage: whole.usage }];
}

function pieces(text: string): string[] {
  return text === ''
    ? []
    : [text.slice(0, Math.ceil(text.length / 2)), text.slice(Math.ceil(text.length / 2))].filter(Boolean);
}

export function eventText(chunk: unknown): string {
  return `data: ${typeof chunk === 'string' ? chunk : JSON.stringify(chunk)}\n\n`;
}

/** Sends all chunks of a stream in one write. `end` is the data of the last event; an empty `end` sends no such event. */
export function sendStream(response: ServerResponse, chunks: readonly unknown[], end = '[DONE]'): void {
  response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8' });
  response.end(chunks.map(eventText).join('') + (end === '' ? '' : eventText(end)));
}
