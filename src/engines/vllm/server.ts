import { Pool } from 'undici';
import { engineIdOf } from '../../core/engine-id.ts';
import { FloeError } from '../../core/errors.ts';
import type { EngineSpec } from '../../schema/index.ts';
import type { CallNames } from '../engine.ts';
import { callEngine, type HttpReply, type OpenReply, openReply } from '../http.ts';
import { errorMessage } from '../record.ts';

/** uvicorn closes idle connections after 5 s; a request on a connection that is being closed would be lost. */
const KEEP_ALIVE_MS = 4_000;

/** An engine that does not accept a connection for this long is not there. */
const CONNECT_TIMEOUT_MS = 5_000;

/** Start-up and version look-ups are small; one that hangs must not hold anything up. */
const CONTROL_TIMEOUT_MS = 10_000;

/** vLLM has no code for an overlong prompt; before it named the parameter, only the wording told. */
const CONTEXT_WORDING = /maximum context length|maximum model length|max_model_len|longer than the maximum/i;
const CONTEXT_PARAM = 'input_tokens';

/** The HTTP side of one vLLM server: connections, addresses, headers, and what a status means. */
export class VllmServer {
  readonly engineId: string;
  private readonly pool: Pool;
  private readonly prefix: string;
  private readonly headers: Readonly<Record<string, string>>;

  constructor(spec: EngineSpec) {
    const base = new URL(spec.base_url);
    this.engineId = spec.engine_id ?? engineIdOf(spec.base_url);
    this.prefix = base.pathname.replace(/\/+$/, '');
    this.headers = spec.api_key === null ? {} : { authorization: `Bearer ${spec.api_key}` };
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

  async close(): Promise<void> {
    if (!this.pool.destroyed) await this.pool.destroy();
  }

  /** A small look-up, whatever its status. Rejects with `engine_unavailable` or `engine_error`. */
  get(path: string, signal: AbortSignal = AbortSignal.timeout(CONTROL_TIMEOUT_MS)): Promise<HttpReply> {
    const { pool, engineId, prefix, headers } = this;
    return callEngine(pool, engineId, { method: 'GET', path: prefix + path, headers, signal });
  }

  /** A small request that has nothing to do with a session, whatever its status. Rejects as {@link get}. */
  tell(path: string, body: string, signal = AbortSignal.timeout(CONTROL_TIMEOUT_MS)): Promise<HttpReply> {
    const { pool, engineId, prefix } = this;
    const headers = { ...this.headers, 'content-type': 'application/json' };
    return callEngine(pool, engineId, { method: 'POST', path: prefix + path, headers, body, signal });
  }

  /** A request of a session. Rejects with what the status says, unless it is 200. */
  async post(path: string, body: string | Buffer, names: CallNames | null, signal: AbortSignal): Promise<OpenReply> {
    const reply = await openReply(this.pool, this.engineId, {
      method: 'POST',
      path: this.prefix + path,
      headers: {
        ...this.headers,
        'content-type': 'application/json',
        ...(names === null
          ? {}
          : {
              'x-request-id': names.completionId,
              // Routers send all calls of a session to the server that holds its prefix.
              'x-session-id': names.sessionId,
            }),
      },
      body,
      signal,
    });
    if (reply.status === 200) return reply;
    throw this.refused({ status: reply.status, headers: reply.headers, body: await reply.read() });
  }

  /** What a status other than 200 means. */
  refused(reply: HttpReply): FloeError {
    const json = jsonOf(reply.body);
    const message = errorMessage(json) ?? `status ${reply.status}`;
    const facts = { status: reply.status };
    if (reply.status === 503 || reply.status === 429) {
      return this.fail('engine_unavailable', message, { ...facts, retry_after_ms: retryAfterMs(reply.headers) });
    }
    // The URL and the model are floe's own, so a server that does not know or trust us is no fault of the request.
    const misplaced = reply.status === 401 || reply.status === 403 || reply.status === 404;
    if (misplaced || reply.status >= 500 || reply.status < 400) return this.fail('engine_error', message, facts);
    const overflow = paramOf(json) === CONTEXT_PARAM || CONTEXT_WORDING.test(message);
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

  /** An error that a reply's reader threw, with the engine's name in it. */
  named(error: unknown): unknown {
    if (!FloeError.is(error) || error.code !== 'engine_error' || error.details.engine_id !== undefined) return error;
    const details = { ...error.details, engine_id: this.engineId };
    return new FloeError(error.code, `engine ${this.engineId}: ${error.message}`, details, error.cause);
  }
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

function paramOf(json: unknown): unknown {
  const error = (json as { error?: { param?: unknown } | null } | null)?.error;
  return typeof error === 'object' && error !== null ? error.param : null;
}
