import { createServer, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export type LlamaCall = {
  readonly path: string;
  readonly body: Record<string, unknown>;
  readonly text: string;
  readonly headers: Record<string, unknown>;
  readonly response: ServerResponse;
};
type Answer = { readonly status?: number; readonly body: unknown; readonly headers?: Record<string, string> };

/**
 * Special tokens of the scripted tokenizer. The tokenizer has one id for each UTF-16 unit and one for each special token, so that texts and
 * ids are easy to convert.
 */
const SPECIAL = ['<|im_start|>', '<|im_end|>', '<think>', '</think>', '<tool_call>', '</tool_call>'];
const SPECIAL_BASE = 70_000;
export const END = SPECIAL_BASE + 1;
const VOCABULARY = SPECIAL_BASE + SPECIAL.length;

export function idsOf(text: string): number[] {
  const ids: number[] = [];
  for (let at = 0; at < text.length; ) {
    const special = SPECIAL.findIndex((token) => text.startsWith(token, at));
    ids.push(special < 0 ? text.charCodeAt(at) : SPECIAL_BASE + special);
    at += special < 0 ? 1 : (SPECIAL[special] as string).length;
  }
  return ids;
}

function textOf(ids: readonly number[]): string {
  return ids.map((id) => SPECIAL[id - SPECIAL_BASE] ?? String.fromCharCode(id)).join('');
}

/** Returns the log-probability of a token id in the scripted model. It does not depend on the preceding ids. */
export const logprobOf = (id: number): number => -((id % 97) + 1) / 100;

/**
 * A loopback server that answers like llama.cpp's server, with an invented tokenizer and template. `reply` is the text that the model writes.
 * Unlike in a simulated engine, the probabilities do not add up to 1. That suffices here, because tests with a real server cover the
 * probabilities themselves.
 */
export class LlamaCppServer {
  readonly calls: LlamaCall[] = [];
  reply = 'Hello.';
  /** Name of the model in replies. */
  replyModel = 'toy';
  template = "{{ '<tool_call>' }}{{ '</think>' }}";
  generationPrompt = '<|im_start|>assistant\n';
  prefill = false;
  /** Whether the reply omits the log-probability of an id. llama.cpp omits it for tokens that end inside a character. */
  hidden: (id: number, index: number) => boolean = () => false;
  /** Function that may change an answer before it is sent; when it returns `null`, no answer is sent. */
  intercept: (call: LlamaCall, answer: Answer) => Answer | null = (_, answer) => answer;
  private readonly server: Server;

  constructor() {
    this.server = createServer((request, response) => {
      const chunks: Buffer[] = [];
      request.on('data', (chunk: Buffer) => chunks.push(chunk));
      request.on('end', () => {
        const text = Buffer.concat(chunks).toString();
        const body = (text === '' ? {} : JSON.parse(text)) as Record<string, unknown>;
        const call = { path: request.url ?? '', body, text, headers: request.headers, response };
        this.calls.push(call);
        const answer = this.intercept(call, this.answer(call));
        if (answer === null) return;
        response.writeHead(answer.status ?? 200, { 'content-type': 'application/json', ...answer.headers });
        response.end(typeof answer.body === 'string' ? answer.body : JSON.stringify(answer.body));
      });
    });
  }

  get baseUrl(): string {
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  requestsTo(path: string): LlamaCall[] {
    return this.calls.filter((call) => call.path === path);
  }

  listen(): Promise<void> {
    return new Promise((resolve) => this.server.listen(0, '127.0.0.1', resolve));
  }

  close(): Promise<void> {
    const closed = new Promise<void>((resolve) => {
      this.server.close(() => resolve());
    });
    this.server.closeAllConnections();
    return closed;
  }

  private answer({ path, body }: LlamaCall): Answer {
    switch (path) {
      case '/v1/models':
        return { body: { data: [{ id: 'toy', aliases: ['toy', 'alias'], meta: { n_vocab: VOCABULARY } }] } };
      case '/props':
        return {
          body: {
            default_generation_settings: { n_ctx: 4096 },
            chat_template: this.template,
            build_info: 'b1-0c1e570',
          },
        };
      case '/metrics':
        return { body: 'llamacpp:requests_processing 0\n' };
      case '/apply-template':
        return { body: { prompt: this.rendered(body) } };
      case '/tokenize':
        return { body: { tokens: idsOf(body.content as string) } };
      case '/detokenize':
        return { body: { content: textOf(body.tokens as number[]) } };
      case '/completion':
        return { body: this.completion(body) };
      default:
        return { status: 404, body: { error: { message: 'File Not Found', type: 'not_found_error', code: 404 } } };
    }
  }

  private rendered(body: Record<string, unknown>): string {
    const messages = body.messages as { role: string; content: unknown }[];
    const turns = messages
      .map(({ role, ...rest }) => `<|im_start|>${role}\n${JSON.stringify(rest)}<|im_end|>\n`)
      .join('');
    const tools = (body.tools as unknown[]).length === 0 ? '' : `${JSON.stringify(body.tools)}\n`;
    if (this.prefill && messages.at(-1)?.role === 'assistant') return (tools + turns).replace(/<\|im_end\|>\n$/, '');
    return tools + turns + (body.add_generation_prompt === false ? '' : this.generationPrompt);
  }

  private completion(body: Record<string, unknown>): Record<string, unknown> {
    const prompt = body.prompt as number[];
    const forced = (body.logit_bias as [number, number][] | undefined)?.[0]?.[0];
    const limit = body.n_predict as number;
    const stops = (body.stop ?? []) as string[];
    const said = this.reply;
    const stop = stops.find((word) => said.includes(word));
    const whole = stop === undefined ? [...idsOf(said), END] : idsOf(said.slice(0, said.indexOf(stop) + stop.length));
    const tokens = forced === undefined ? (limit < 0 ? whole : whole.slice(0, limit)) : [forced];
    const cut = tokens.length < whole.length;
    const count = body.n_probs as number;
    const reply = {
      model: this.replyModel,
      tokens,
      tokens_predicted: tokens.length,
      tokens_evaluated: prompt.length,
      truncated: false,
      stop_type: cut ? 'limit' : stop === undefined ? 'eos' : 'word',
      stopping_word: cut ? '' : (stop ?? ''),
      timings: { cache_n: 1 },
      completion_probabilities: tokens
        .map((id, index) => ({
          id,
          index,
          logprob: logprobOf(id),
          top_logprobs: forced === undefined ? [] : top(count),
        }))
        .filter(({ id, index }) => forced !== undefined || !this.hidden(id, index)),
    };
    const fields = body.response_fields as string[] | undefined;
    return Object.fromEntries(Object.entries(reply).filter(([name]) => fields?.includes(name) !== false));
  }
}

/** Returns the `count` most likely token ids of the scripted model, sorted from the most likely. */
function top(count: number): { id: number; logprob: number }[] {
  const all = Array.from({ length: VOCABULARY }, (_, id) => ({ id, logprob: logprobOf(id) }));
  return all.sort((a, b) => b.logprob - a.logprob).slice(0, count);
}
