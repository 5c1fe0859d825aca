import { abortAfter, abortLate, type Clock, engineIdOf, FloeError, onAbort } from '@floe-rl/core';
import type { EngineSpec } from '@floe-rl/core/schema';
import { Pool } from 'undici';
import { z } from 'zod';
import { errorMessageOf, invalidReply, isErrorBody, parseWith } from './chat/reply-tokens.ts';
import type { CallContext } from './engine.ts';
import { type OpenReply, openReply, type ReplyHeaders } from './http-exchange.ts';

/**
 * Longest time that an idle connection is kept for reuse. It is below the 5 s after which servers such as uvicorn close an idle
 * connection, because a request on a connection that is being closed would be lost.
 */
const KEEP_ALIVE_MS = 4_000;

/** Time limit for opening a connection. A server that takes longer counts as unavailable. */
const CONNECT_TIMEOUT_MS = 5_000;

/**
 * Time limit of control requests, such as a request for metrics or for the abort of a call. The limit keeps a server that hangs from blocking
 * the caller.
 */
const CONTROL_TIMEOUT_MS = 10_000;
/**
 * Maximum time in milliseconds for finishing a reply that has already been sampled, counted from the abort of its call. Finishing normally
 * takes milliseconds, and a few seconds when the server is busy.
 */
export const FINISH_GRACE_MS = 10_000;

const NO_HEADERS: Readonly<Record<string, string>> = {};

export type HttpReply = { readonly status: number; readonly headers: ReplyHeaders; readonly body: Buffer };

type EngineServerOptions = {
  readonly clock: Clock;
  /** Whether this error, which the server sent, means that the prompt is too long for the model. */
  readonly isOverflow: (error: ErrorBody) => boolean;
  /** Returns the headers that identify a call to the server and to routers in front of it. Absent when the server uses no such headers. */
  readonly headersOf?: (context: CallContext) => Readonly<Record<string, string>>;
  /** Returns the headers that authenticate the next request. Absent when the API key of the specification is sent as a bearer token. */
  readonly authHeaders?: () => Readonly<Record<string, string>>;
};

/** The error in a reply's body, with the fields of OpenAI's API; a field that is missing is `null`. */
type ErrorBody = {
  readonly message: string;
  readonly type: string | null;
  readonly param: string | null;
  readonly code: string | null;
};

const errorBodySchema = z.looseObject({
  error: z.looseObject({ type: z.unknown().optional(), param: z.unknown().optional(), code: z.unknown().optional() }),
});

/** HTTP client of one inference server: holds its connections, builds URLs and headers, and converts error statuses to `FloeError`. */
export class EngineServer {
  readonly engineId: string;
  private readonly pool: Pool;
  private readonly pathPrefix: string;
  private readonly headers: Record<string, string>;
  private readonly options: EngineServerOptions;

  constructor(spec: EngineSpec, options: EngineServerOptions) {
    const base = new URL(spec.base_url);
    this.engineId = spec.engine_id ?? engineIdOf(spec.base_url);
    this.pathPrefix = base.pathname.replace(/\/+$/, '');
    this.options = options;
    const isBearer = spec.api_key !== null && options.authHeaders === undefined;
    this.headers = {
      'content-type': 'application/json',
      ...(isBearer ? { authorization: `Bearer ${spec.api_key}` } : {}),
    };
    this.pool = new Pool(base.origin, {
      // A reply may take any length of time, so undici's own timeouts are switched off. The caller's abort signal carries the deadline.
      headersTimeout: 0,
      bodyTimeout: 0,
      connections: null,
      pipelining: 1,
      keepAliveTimeout: KEEP_ALIVE_MS,
      keepAliveMaxTimeout: KEEP_ALIVE_MS,
      connect: { timeout: CONNECT_TIMEOUT_MS },
    });
  }

  /**
   * Sends a control request, which belongs to no session, by GET. Resolves with the reply, whatever its status is. Rejects as {@link post}
   * does, and with `engine_unavailable` after {@link CONTROL_TIMEOUT_MS}.
   */
  controlGet(path: string, signal?: AbortSignal): Promise<HttpReply> {
    return this.control('GET', path, undefined, signal);
  }

  /** Sends a control request by POST. Resolves and rejects as {@link controlGet} does. */
  controlPost(path: string, body: string, signal?: AbortSignal): Promise<HttpReply> {
    return this.control('POST', path, body, signal);
  }

  private control(
    method: 'GET' | 'POST',
    path: string,
    body: string | undefined,
    signal: AbortSignal | undefined,
  ): Promise<HttpReply> {
    const send = async (limited: AbortSignal): Promise<HttpReply> => {
      const reply = await this.send(method, path, this.headersFor(null), body, limited);
      return { status: reply.status, headers: reply.headers, body: await reply.read() };
    };
    return this.withDeadline(CONTROL_TIMEOUT_MS, send, path, signal);
  }

  /** Runs `work` with a signal that aborts when `signal` aborts, or after `limitMs` with the error `engine_unavailable`. */
  async withDeadline<T>(
    limitMs: number,
    work: (signal: AbortSignal) => Promise<T>,
    what = 'the server',
    signal?: AbortSignal,
  ): Promise<T> {
    const lateError = (): FloeError => this.error('engine_unavailable', `${what} did not answer within ${limitMs} ms`);
    const limit = abortAfter(this.options.clock, limitMs, lateError, signal);
    try {
      return await work(limit.signal);
    } finally {
      limit.release();
    }
  }

  /**
   * Runs `work`, the last step of a call whose reply has been sampled. The signal that `work` gets aborts {@link FINISH_GRACE_MS} later
   * than `signal`, so that the sampled tokens are still recorded when the client disconnects during this step.
   */
  async finishing<T>(signal: AbortSignal, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const late = abortLate(this.options.clock, FINISH_GRACE_MS, signal);
    try {
      return await work(late.signal);
    } finally {
      late.release();
    }
  }

  /**
   * Fetches the server's own metrics in Prometheus text. Resolves with `null` when the server has no metrics endpoint or was started
   * without metrics.
   */
  async metrics(signal: AbortSignal): Promise<string | null> {
    const reply = await this.controlGet('/metrics', signal);
    // A llama.cpp server that was started without its option --metrics answers with status 501.
    if (reply.status === 501 || reply.status === 404) return null;
    if (reply.status !== 200) throw this.statusError(reply);
    return reply.body.toString('utf8');
  }

  /**
   * Posts `body` to `path`, with `headers` in addition to the usual ones, and resolves with the reply when its status is 200. Rejects, as
   * do the reply's methods `read` and `each`:
   * - with {@link statusError} for any other status.
   * - with `engine_unavailable` when no reply began. Either no connection could be opened, or the connection was lost before the first byte
   *   (`details.connection_lost`). A connection is lost in this way when a server closes an idle connection while a request is being sent
   *   on it.
   * - with `engine_error` from `read` and `each` when the body is incomplete (`details.broken_off`).
   * - with the signal's reason when the signal aborts.
   */
  async post(
    path: string,
    body: string | Buffer,
    context: CallContext | null,
    signal: AbortSignal,
    headers: Readonly<Record<string, string>> = NO_HEADERS,
  ): Promise<OpenReply> {
    const reply = await this.send('POST', path, this.headersFor(context, headers), body, signal);
    if (reply.status === 200) return reply;
    throw this.statusError({ status: reply.status, headers: reply.headers, body: await reply.read() });
  }

  private headersFor(
    context: CallContext | null,
    more: Readonly<Record<string, string>> = NO_HEADERS,
  ): Record<string, string> {
    const { headersOf, authHeaders } = this.options;
    const headers: Record<string, string> = { ...this.headers };
    if (authHeaders !== undefined) Object.assign(headers, authHeaders());
    if (context !== null) {
      if (headersOf !== undefined) Object.assign(headers, headersOf(context));
      if (context.traceparent != null) headers.traceparent = context.traceparent;
    }
    return more === NO_HEADERS ? headers : Object.assign(headers, more);
  }

  /**
   * Posts a small request and parses its reply with `schema`. `headers` are sent in addition to the usual ones. Rejects as {@link post}
   * does, and with `engine_error` when the reply does not match `schema`.
   */
  async call<T extends z.ZodType>(
    path: string,
    body: string,
    context: CallContext | null,
    schema: T,
    signal: AbortSignal,
    headers: Readonly<Record<string, string>> = {},
  ): Promise<z.output<T>> {
    const reply = await this.post(path, body, context, signal, headers);
    const json = jsonOf(await reply.read());
    if (isErrorBody(json))
      throw invalidReply(`${path}: status 200 with an error inside: ${errorMessageOf(json) ?? ''}`);
    return parseWith(schema, json);
  }

  /**
   * Runs `work`, which makes one call on this server. When the signal aborts while `work` runs, `body` is posted to `path` to abort the
   * call on the server too, because a server detects a closed connection late. The reply to that post is ignored. Rejects as `work` does,
   * or with the signal's reason when the signal had aborted before the start.
   */
  async abortable<T>(signal: AbortSignal, path: string, body: string, work: () => Promise<T>): Promise<T> {
    signal.throwIfAborted();
    const release = onAbort(signal, () => {
      this.controlPost(path, body).catch(() => {});
    });
    try {
      return await work();
    } finally {
      release();
    }
  }

  /** Converts a reply whose status is not 200 to an error. */
  statusError(reply: HttpReply): FloeError {
    const { status } = reply;
    const body = errorBodyOf(jsonOf(reply.body), status);
    const { message } = body;
    if (status === 503 || status === 429) {
      return this.error('engine_unavailable', message, { status, retry_after_ms: retryAfterMs(reply.headers) });
    }
    if (status === 501) return this.error('unsupported', message, { status });
    // Statuses 401 to 405 mean that the URL, the API key, the account or the model is wrong. These are configured in floe and are no fault
    // of the agent's request, so the error is `engine_error` and not `engine_rejected`.
    const isMisconfigured = (status >= 401 && status <= 404) || status === 405;
    if (isMisconfigured || status >= 500 || status < 400) return this.error('engine_error', message, { status });
    // The engine's message is kept unchanged, because agent harnesses recognise the error for an overlong prompt by its wording.
    return new FloeError('engine_rejected', message, {
      status,
      engine_id: this.engineId,
      ...(body.param === null ? {} : { param: body.param }),
      ...(body.code === null ? {} : { engine_code: body.code }),
      ...(this.options.isOverflow(body) ? { context_overflow: true } : {}),
    });
  }

  /** Makes an error whose message and details contain the engine's id. */
  error(code: 'engine_error' | 'engine_unavailable' | 'unsupported', what: string, details: object = {}): FloeError {
    return new FloeError(code, `engine ${this.engineId}: ${what}`, { ...details, engine_id: this.engineId });
  }

  async close(): Promise<void> {
    if (!this.pool.destroyed) await this.pool.destroy();
  }

  private send(
    method: 'GET' | 'POST',
    path: string,
    headers: Record<string, string>,
    body: string | Buffer | undefined,
    signal: AbortSignal,
  ): Promise<OpenReply> {
    return openReply(this.pool, this.engineId, { method, path: this.pathPrefix + path, headers, body, signal });
  }
}

/**
 * Whether a failed call was answered by a complete reply of the server itself, so that the error shows what the server supports. False when
 * the server was unavailable or its reply broke off.
 */
export function hasAnswered(error: unknown): error is FloeError {
  return FloeError.is(error) && error.code !== 'engine_unavailable' && error.details.broken_off !== true;
}

/** Parses a body as JSON. Returns `null` for a body that is not JSON. */
export function jsonOf(body: Buffer): unknown {
  try {
    return JSON.parse(body.toString('utf8'));
  } catch {
    return null;
  }
}

function errorBodyOf(json: unknown, status: number): ErrorBody {
  const parsed = errorBodySchema.safeParse(json);
  const { type, param, code } = parsed.success ? parsed.data.error : { type: null, param: null, code: null };
  return {
    message: errorMessageOf(json) ?? `status ${status}`,
    type: stringOrNull(type),
    param: stringOrNull(param),
    code: stringOrNull(code),
  };
}

function stringOrNull(value: unknown): string | null {
  return typeof value === 'string' ? value : null;
}

function retryAfterMs(headers: HttpReply['headers']): number | null {
  const seconds = Number(headers['retry-after']);
  return Number.isFinite(seconds) && seconds >= 0 ? seconds * 1000 : null;
}
