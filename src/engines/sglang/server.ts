import { Pool } from 'undici';
import type { z } from 'zod';
import { FloeError } from '../../core/errors.ts';
import { callEngine, type HttpReply, type OpenReply, openReply } from '../http.ts';
import { errorMessage, isErrorBody, refusal, shaped } from '../record.ts';

/** uvicorn closes idle connections after 5 s; a request on a connection that is being closed would be lost. */
const KEEP_ALIVE_MS = 4_000;

/** An engine that does not accept a connection for this long is not there. */
const CONNECT_TIMEOUT_MS = 5_000;

/** Look-ups are small; one that hangs must not hold anything up. */
const CONTROL_TIMEOUT_MS = 10_000;

/** SGLang has no code for an overlong prompt; only the wording of its three checks tells. */
const CONTEXT_WORDING =
  /longer than the model's context length|maximum context length|exceeds the maximum allowed length/i;

/** Names a call to the server and to routers before it: those keep the calls of a session together by its key. */
export type CallHeaders = { readonly sessionId: string };

export type ServerOptions = { readonly engineId: string; readonly baseUrl: string; readonly apiKey: string | null };

/** HTTP to one SGLang server: connections, the token, and errors by status. */
export class SglangServer {
  readonly engineId: string;
  private readonly pool: Pool;
  private readonly prefix: string;
  private readonly headers: Record<string, string>;

  constructor({ engineId, baseUrl, apiKey }: ServerOptions) {
    const base = new URL(baseUrl);
    this.engineId = engineId;
    this.prefix = base.pathname.replace(/\/+$/, '');
    this.headers = {
      'content-type': 'application/json',
      ...(apiKey === null ? {} : { authorization: `Bearer ${apiKey}` }),
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
  async ask(method: 'GET' | 'POST', path: string, body?: unknown, signal?: AbortSignal): Promise<HttpReply> {
    const deadline = AbortSignal.timeout(CONTROL_TIMEOUT_MS);
    try {
      return await callEngine(this.pool, this.engineId, {
        method,
        path: this.prefix + path,
        headers: this.headers,
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
        signal: signal === undefined ? deadline : AbortSignal.any([signal, deadline]),
      });
    } catch (error) {
      if (!deadline.aborted || signal?.aborted === true) throw error;
      throw this.fail('engine_unavailable', `${path} did not answer within ${CONTROL_TIMEOUT_MS} ms`);
    }
  }

  /** Opens a call. Rejects with what the status says, unless it is 200. */
  async post(path: string, body: string, names: CallHeaders | null, signal: AbortSignal): Promise<OpenReply> {
    const reply = await openReply(this.pool, this.engineId, {
      method: 'POST',
      path: this.prefix + path,
      headers:
        names === null
          ? this.headers
          : { ...this.headers, 'x-smg-routing-key': names.sessionId, 'x-session-id': names.sessionId },
      body,
      signal,
    });
    if (reply.status === 200) return reply;
    throw this.refused({ status: reply.status, headers: reply.headers, body: await reply.read() });
  }

  /** A small call whose answer has `schema`. Rejects as {@link post} does, and with `engine_error` for another answer. */
  async call<T extends z.ZodType>(
    path: string,
    body: string,
    names: CallHeaders | null,
    schema: T,
    signal: AbortSignal,
  ): Promise<z.output<T>> {
    const reply = await this.post(path, body, names, signal);
    const json = jsonOf(await reply.read());
    if (isErrorBody(json)) throw refusal(`${path}: status 200 with an error inside: ${errorMessage(json) ?? ''}`);
    return shaped(schema, json);
  }

  /** Tells the server and expects 200; `what` names the call where it fails. */
  async tell(path: string, body: unknown, signal: AbortSignal): Promise<void> {
    const reply = await this.ask('POST', path, body, signal);
    if (reply.status !== 200) throw this.refused(reply);
  }

  refused(reply: HttpReply): FloeError {
    const message = errorMessage(jsonOf(reply.body)) ?? `status ${reply.status}`;
    const facts = { status: reply.status };
    if (reply.status === 503 || reply.status === 429) {
      return this.fail('engine_unavailable', message, { ...facts, retry_after_ms: retryAfterMs(reply.headers) });
    }
    const overflow = CONTEXT_WORDING.test(message);
    // The URL and the model are floe's own, so a server that does not know or trust us is no fault of the request.
    const misplaced = reply.status === 401 || reply.status === 403 || reply.status === 404;
    if (misplaced || reply.status >= 500 || reply.status < 400) return this.fail('engine_error', message, facts);
    // The wording stays the engine's own: harnesses recognise an overlong prompt by it.
    return new FloeError('engine_rejected', message, {
      ...facts,
      engine_id: this.engineId,
      ...(overflow ? { context_overflow: true } : {}),
    });
  }

  fail(code: 'engine_error' | 'engine_unavailable' | 'unsupported', what: string, details: object = {}): FloeError {
    return new FloeError(code, `engine ${this.engineId}: ${what}`, { ...details, engine_id: this.engineId });
  }

  async close(): Promise<void> {
    if (!this.pool.destroyed) await this.pool.destroy();
  }
}

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
