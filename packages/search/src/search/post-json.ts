import { type Backoff, backoffMs, FloeError, MIB, parseJson, sleep, systemClock } from '@floe-rl/core';
import { callHttp, quotedReply } from '@floe-rl/core/http';

/** Time limit of one attempt in milliseconds. */
const TIMEOUT_MS = 30_000;
/** Number of attempts when the service does not answer, is overloaded or fails. */
const ATTEMPTS = 4;
const BACKOFF: Backoff = { baseMs: 250, maxMs: 4_000 };
const MAX_REPLY_BYTES = 64 * MIB;
const MAX_VALUES = 20_000_000;

/** An HTTP service that receives and returns JSON. */
export type JsonService = {
  readonly url: string;
  /** Sent as a bearer token; `null` for none. */
  readonly key: string | null;
  /** Name of the service in messages, such as `the search service`. */
  readonly name: string;
};

/**
 * Posts JSON and returns the parsed answer. Retries attempts that fail for a reason that may be temporary. Rejects with `peer_unreachable`
 * when all attempts fail, with `bad_request` for an answer that refuses the request, or with the reason of `signal`.
 */
export async function postJson(service: JsonService, body: object, signal: AbortSignal): Promise<unknown> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await postOnce(service, JSON.stringify(body), signal);
    } catch (error) {
      signal.throwIfAborted();
      const mayPass = !FloeError.is(error) || error.retryable;
      if (mayPass && attempt < ATTEMPTS) await sleep(systemClock, backoffMs(BACKOFF, attempt), signal);
      else throw FloeError.is(error) ? error : unreachable(service, (error as Error).message, error);
    }
  }
}

async function postOnce(service: JsonService, body: string, signal: AbortSignal): Promise<unknown> {
  const { url, key, name } = service;
  const headers = {
    'content-type': 'application/json',
    ...(key === null ? {} : { authorization: `Bearer ${key}` }),
  };
  const reply = await callHttp(
    url,
    { method: 'POST', headers, body, signal },
    {
      clock: systemClock,
      limitMs: TIMEOUT_MS,
      late: () => unreachable(service, `it did not answer within ${TIMEOUT_MS / 1000} s`),
      maxBytes: MAX_REPLY_BYTES,
      tooLarge: () => new FloeError('bad_request', `${name}: its answer is too large`),
    },
  );
  const { status } = reply;
  const text = reply.body.toString('utf8');
  if (status >= 200 && status < 300) return parseJson(text, MAX_VALUES);
  const quoted = quotedReply(status, text);
  if (status === 400 || status === 422) throw new FloeError('bad_request', `${name} refused the request, ${quoted}`);
  if (status === 429 || status >= 500) throw unreachable(service, quoted);
  throw new FloeError('setup_failed', `${name} at ${url} refused the request, ${quoted}`, { url, status });
}

function unreachable({ url, name }: JsonService, reason: string, cause?: unknown): FloeError {
  return new FloeError('peer_unreachable', `${name} at ${url} cannot be used: ${reason}`, { url }, cause);
}

/** Returns the error for an answer of a service that has an unexpected form. */
export function unreadable({ url, name }: JsonService, problem: string): FloeError {
  return new FloeError('setup_failed', `${name} at ${url} gave an answer of another form: ${problem}`, { url });
}
