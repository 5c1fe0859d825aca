import {
  type Backoff,
  type Clock,
  FloeError,
  jitteredBackoffMs,
  MIB,
  type RandomSource,
  sleep,
  systemClock,
  systemRandom,
  wellFormedJson,
} from '@floe-rl/core';
import { callHttp, httpAgent } from '@floe-rl/core/http';
import type { Turn } from '../tools/conversation.ts';
import { callHeaders, chatBody, replyError, turnOf } from './chat-api.ts';
import type { Model, ModelRequest } from './model.ts';

/** Number of times that a call is tried. With the pauses between them, a call outlasts 15 to 30 seconds without a server. */
const ATTEMPTS = 7;
const BACKOFF: Backoff = { baseMs: 500, maxMs: 15_000 };
/** Longest pause in milliseconds for which a server may ask. */
const MAX_RETRY_AFTER_MS = 60_000;
/** Default time limit of one try in milliseconds. */
const REPLY_MS = 600_000;
/** Maximum size of a reply in bytes, as for replies of engines. */
const MAX_REPLY_BYTES = 256 * MIB;

export type HttpModelOptions = {
  /** Base URL of an OpenAI-compatible API, with its version (`http://host:8000/v1`) or without (the base URL of a session of floe). */
  readonly baseUrl: string;
  /** Sent as a bearer token; `null` for a server that wants none. */
  readonly apiKey: string | null;
  /** Name of the model in requests. */
  readonly model: string;
  /** Time limit of one try in milliseconds; default: 10 minutes. */
  readonly replyMs?: number;
  readonly clock?: Clock;
  /** Varies the pauses between tries. */
  readonly random?: RandomSource;
};

/** A model that is called over HTTP. */
export type HttpModel = Model & {
  /** Closes the connections. */
  close(): Promise<void>;
};

/**
 * Returns a model at an OpenAI-compatible URL, which gets the whole conversation in every call. Calls are retried, with growing pauses, after
 * status 429 or 5xx and when the server cannot be reached. They reject with a FloeError: the error of floe's proxy, `peer_unreachable`,
 * `unauthorized`, `engine_rejected`, and others by their status. Throws `bad_request` for a base URL that is no HTTP URL.
 */
export function httpModel(options: HttpModelOptions): HttpModel {
  return new OpenaiModel(options);
}

/** Returns the URL for chat completions below a base URL. Throws `bad_request` for a base URL that is no HTTP URL. */
export function completionsUrl(baseUrl: string): string {
  const url = URL.canParse(baseUrl) ? new URL(baseUrl) : null;
  if (url === null || !/^https?:$/.test(url.protocol)) {
    throw new FloeError('bad_request', `the base URL of the model, ${JSON.stringify(baseUrl)}, is no HTTP URL`);
  }
  const path = url.pathname.replace(/\/+$/, '');
  const hasVersion = path.split('/').some((segment) => /^v\d{1,2}((alpha|beta)\d*)?$/.test(segment));
  url.pathname = `${path}${hasVersion ? '' : '/v1'}/chat/completions`;
  return url.href;
}

class OpenaiModel implements HttpModel {
  private readonly options: HttpModelOptions;
  private readonly url: string;
  private readonly clock: Clock;
  private readonly random: RandomSource;
  private readonly agent = httpAgent();
  private replies = 0;

  constructor(options: HttpModelOptions) {
    this.options = options;
    this.url = completionsUrl(options.baseUrl);
    this.clock = options.clock ?? systemClock;
    this.random = options.random ?? systemRandom;
  }

  async ask(request: ModelRequest, signal: AbortSignal): Promise<Turn> {
    const body = wellFormedJson(chatBody(request, this.options.model));
    const headers = callHeaders(request);
    for (let attempt = 1; ; attempt++) {
      signal.throwIfAborted();
      const outcome = await this.attempt(body, headers, attempt, signal);
      if (!('error' in outcome)) return outcome;
      signal.throwIfAborted();
      if (attempt >= ATTEMPTS || !outcome.isTransient) throw outcome.error;
      const pauseMs = outcome.retryAfterMs ?? jitteredBackoffMs(BACKOFF, attempt, this.random);
      await sleep(this.clock, pauseMs, signal);
    }
  }

  async close(): Promise<void> {
    await this.agent.destroy();
  }

  private async attempt(
    body: string,
    headers: Readonly<Record<string, string>>,
    attempt: number,
    signal: AbortSignal,
  ): Promise<Turn | Failure> {
    const { apiKey, replyMs = REPLY_MS } = this.options;
    const { url } = this;
    const late = new FloeError('deadline_exceeded', `${url} did not reply within ${replyMs / 1000} s`);
    const request = {
      method: 'POST',
      agent: this.agent,
      signal,
      headers: {
        'content-type': 'application/json',
        accept: 'application/json',
        // By this header, which the SDKs of OpenAI send, floe's proxy recognises a retry.
        'x-stainless-retry-count': String(attempt - 1),
        ...(apiKey === null ? {} : { authorization: `Bearer ${apiKey}` }),
        ...headers,
      },
      body,
    } as const;
    const limits = {
      clock: this.clock,
      limitMs: replyMs,
      late: () => late,
      maxBytes: MAX_REPLY_BYTES,
      tooLarge: () => new FloeError('engine_error', `${url} replied with more than ${MAX_REPLY_BYTES / MIB} MiB`),
    };
    try {
      const reply = await callHttp(url, request, limits);
      const text = new TextDecoder().decode(reply.body);
      const { status } = reply;
      if (status < 300) return turnOf(text, `reply-${++this.replies}`);
      return {
        error: replyError(status, text, url),
        isTransient: status === 429 || status >= 500,
        retryAfterMs: retryAfterMs(reply.headers['retry-after']),
      };
    } catch (thrown) {
      if (thrown === late) return { error: late, isTransient: true, retryAfterMs: null };
      signal.throwIfAborted();
      if (FloeError.is(thrown)) throw thrown;
      const reason = thrown instanceof Error ? thrown.message || thrown.name : String(thrown);
      const error = new FloeError('peer_unreachable', `${url}: ${reason}`, {}, thrown);
      return { error, isTransient: true, retryAfterMs: null };
    }
  }
}

type Failure = { readonly error: unknown; readonly isTransient: boolean; readonly retryAfterMs: number | null };

/** Returns the pause for which the header `Retry-After` asks in seconds; `null` without a valid one. */
function retryAfterMs(header: string | string[] | undefined): number | null {
  const seconds = typeof header === 'string' && header.trim() !== '' ? Number(header) : Number.NaN;
  return Number.isFinite(seconds) && seconds >= 0 ? Math.min(seconds * 1000, MAX_RETRY_AFTER_MS) : null;
}
