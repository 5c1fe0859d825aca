import { Pool } from 'undici';
import { z } from 'zod';
import { FloeError } from '../core/errors.ts';
import { engineIdOf } from '../core/ids.ts';
import type { EngineSpec } from '../schema/index.ts';
import type { CallNames } from './engine.ts';
import { callEngine, type HttpCall, type HttpReply, type OpenReply, openReply } from './http.ts';
import { errorMessage, isErrorBody, refusal, shaped } from './record.ts';

/** Servers (uvicorn, for one) close idle connections after 5 s or more; a request on a connection that is being closed would be lost. */
const KEEP_ALIVE_MS = 4_000;

/** An engine that does not accept a connection for this long is not there. */
const CONNECT_TIMEOUT_MS = 5_000;

/** Look-ups and probes are small; one that hangs must not hold anything up. */
const CONTROL_TIMEOUT_MS = 10_000;

export type EngineServerOptions = {
  /** Whether a refusal is of a prompt that is too long for the model. */
  readonly isOverflow: (refusal: Refusal) => boolean;
  /** Headers that name a call to the server and to routers before it; absent: none. */
  readonly headersOf?: (names: CallNames) => Readonly<Record<string, string>>;
};

/** What an error body says; the fields that OpenAI's API and its likes have beside the message. */
export type Refusal = {
  readonly message: string;
  readonly type: string | null;
  readonly param: string | null;
  readonly code: string | null;
};

const refusalSchema = z.looseObject({
  error: z.looseObject({ type: z.unknown().optional(), param: z.unknown().optional(), code: z.unknown().optional() }),
});

/** HTTP to one inference server: connections, addresses, headers, and what a status means. */
export class EngineServer {
  readonly engineId: string;
  private readonly pool: Pool;
  private readonly prefix: string;
  private readonly headers: Record<string, string>;
  private readonly options: EngineServerOptions;

  constructor(spec: EngineSpec, options: EngineServerOptions) {
    const base = new URL(spec.base_url);
    this.engineId = spec.engine_id ?? engineIdOf(spec.base_url);
    this.prefix = base.pathname.replace(/\/+$/, '');
    this.options = options;
    this.headers = {
      'content-type': 'application/json',
      ...(spec.api_key === null ? {} : { authorization: `Bearer ${spec.api_key}` }),
    };
    this.pool = new Pool(base.origin, {
      // A reply takes as long as it takes; deadlines come with the signal.
      headersTimeout: 0,
      bodyTimeout: 0,
      connections: null,
      pipelining: 1,
      keepAliveTimeout: KEEP_ALIVE_MS,
      keepAliveMaxTimeout: KEEP_ALIVE_MS,
      connect: { timeout: CONNECT_TIMEOUT_MS },
    });
  }

  /** A look-up under a deadline of its own; any status. Rejects as {@link callEngine} does, `engine_unavailable` at the deadline. */
  look(path: string, signal?: AbortSignal): Promise<HttpReply> {
    return this.ask({ method: 'GET', path }, signal);
  }

  /** A small request that belongs to no session. As {@link look}. */
  tell(path: string, body: string, signal?: AbortSignal): Promise<HttpReply> {
    return this.ask({ method: 'POST', path, body }, signal);
  }

  private async ask(
    { path, ...call }: Pick<HttpCall, 'method' | 'path' | 'body'>,
    signal: AbortSignal | undefined,
  ): Promise<HttpReply> {
    const deadline = AbortSignal.timeout(CONTROL_TIMEOUT_MS);
    try {
      return await callEngine(this.pool, this.engineId, {
        ...call,
        path: this.prefix + path,
        headers: this.headers,
        signal: signal === undefined ? deadline : AbortSignal.any([signal, deadline]),
      });
    } catch (error) {
      if (!deadline.aborted || signal?.aborted === true) throw error;
      throw this.fail('engine_unavailable', `${path} did not answer within ${CONTROL_TIMEOUT_MS} ms`);
    }
  }

  /** The server's own metrics in Prometheus text; null: it has none, or was started without. */
  async metrics(signal: AbortSignal): Promise<string | null> {
    const reply = await this.look('/metrics', signal);
    // llama.cpp without --metrics says that it does not support them.
    if (reply.status === 501 || reply.status === 404) return null;
    if (reply.status !== 200) throw this.refused(reply);
    return reply.body.toString('utf8');
  }

  /** Opens a call. Rejects with what the status says, unless it is 200. */
  async post(path: string, body: string | Buffer, names: CallNames | null, signal: AbortSignal): Promise<OpenReply> {
    const reply = await openReply(this.pool, this.engineId, {
      method: 'POST',
      path: this.prefix + path,
      headers: names === null ? this.headers : this.headersFor(names),
      body,
      signal,
    });
    if (reply.status === 200) return reply;
    throw this.refused({ status: reply.status, headers: reply.headers, body: await reply.read() });
  }

  private headersFor(names: CallNames): Record<string, string> {
    const headers = { ...this.headers, ...this.options.headersOf?.(names) };
    return names.traceparent == null ? headers : { ...headers, traceparent: names.traceparent };
  }

  /** A small call whose answer has `schema`. Rejects as {@link post} does, and with `engine_error` for another answer. */
  async call<T extends z.ZodType>(
    path: string,
    body: string,
    names: CallNames | null,
    schema: T,
    signal: AbortSignal,
  ): Promise<z.output<T>> {
    const reply = await this.post(path, body, names, signal);
    const json = jsonOf(await reply.read());
    if (isErrorBody(json)) throw refusal(`${path}: status 200 with an error inside: ${errorMessage(json) ?? ''}`);
    return shaped(schema, json);
  }

  /**
   * Runs one call, and tells the server when the signal aborts meanwhile: it notices only late that a connection is gone. Whether it
   * was heard changes nothing for the caller. Rejects as `work` does, or with the signal's reason.
   */
  async abortable<T>(signal: AbortSignal, path: string, body: string, work: () => Promise<T>): Promise<T> {
    const abort = (): void => {
      this.tell(path, body).catch(() => {});
    };
    signal.throwIfAborted();
    signal.addEventListener('abort', abort, { once: true });
    try {
      return await work();
    } finally {
      signal.removeEventListener('abort', abort);
    }
  }

  /** What a reply with another status than 200 means. */
  refused(reply: HttpReply): FloeError {
    const { status } = reply;
    const said = refusalOf(jsonOf(reply.body), status);
    const { message } = said;
    if (status === 503 || status === 429) {
      return this.fail('engine_unavailable', message, { status, retry_after_ms: retryAfterMs(reply.headers) });
    }
    if (status === 501) return this.fail('unsupported', message, { status });
    // The URL, the key, what was paid and the model are floe's own, so a server that does not know or trust us is no fault of the request.
    const misplaced = (status >= 401 && status <= 404) || status === 405;
    if (misplaced || status >= 500 || status < 400) return this.fail('engine_error', message, { status });
    // The wording stays the engine's own: harnesses recognise an overlong prompt by it.
    return new FloeError('engine_rejected', message, {
      status,
      engine_id: this.engineId,
      ...(said.param === null ? {} : { param: said.param }),
      ...(said.code === null ? {} : { engine_code: said.code }),
      ...(this.options.isOverflow(said) ? { context_overflow: true } : {}),
    });
  }

  fail(code: 'engine_error' | 'engine_unavailable' | 'unsupported', what: string, details: object = {}): FloeError {
    return new FloeError(code, `engine ${this.engineId}: ${what}`, { ...details, engine_id: this.engineId });
  }

  async close(): Promise<void> {
    if (!this.pool.destroyed) await this.pool.destroy();
  }
}

function refusalOf(json: unknown, status: number): Refusal {
  const parsed = refusalSchema.safeParse(json);
  const { type, param, code } = parsed.success ? parsed.data.error : { type: null, param: null, code: null };
  return { message: errorMessage(json) ?? `status ${status}`, type: word(type), param: word(param), code: word(code) };
}

function word(value: unknown): string | null {
  return typeof value === 'string' ? value : null;
}

/** Null for what is no JSON. */
export function jsonOf(body: Buffer): unknown {
  try {
    return JSON.parse(body.toString('utf8'));
  } catch {
    return null;
  }
}

function retryAfterMs(headers: HttpReply['headers']): number | null {
  const seconds = Number(headers['retry-after']);
  return Number.isFinite(seconds) && seconds >= 0 ? seconds * 1000 : null;
}
