import { abortAfter, FloeError, MIB, parseAs, parseJson, systemClock, wellFormedJson } from '@floe-rl/core';
import { openHttp, quotedReply } from '@floe-rl/core/http';
import { getSetCookies, Headers } from 'undici';
import type { z } from 'zod';
import { authorization, type RemoteService, serverFailed, worldFailed } from './service.ts';

/** Maximum size of an answer in bytes. */
export const MAX_ANSWER_BYTES = 32 * MIB;
const MAX_VALUES = 1_000_000;
/** Maximum size of all cookies of a session in bytes. */
const MAX_COOKIE_BYTES = 64 * 1024;
/** Statuses of a server, or of a proxy before it, that cannot serve now. */
const UNAVAILABLE = new Set([429, 502, 503, 504]);

export type HttpAnswer = { readonly status: number; readonly text: string };

export type HttpRequest = {
  /** `undefined` for none. */
  readonly body?: unknown;
  readonly headers?: Readonly<Record<string, string>>;
  /** Statuses that are answers although they state that the server cannot serve now; default: none. */
  readonly accepted?: readonly number[];
};

/** Makes the HTTP requests of one episode, one after the other, with the cookies that the server sets. */
export class RemoteHttp {
  private readonly service: RemoteService;
  private readonly timeoutMs: number;
  private readonly parent: AbortSignal;
  private readonly cookies = new Map<string, string>();

  constructor(service: RemoteService, timeoutMs: number, signal: AbortSignal) {
    this.service = service;
    this.timeoutMs = timeoutMs;
    this.parent = signal;
  }

  /**
   * Sends a request and returns the answer, whatever its status. Rejects with `peer_unreachable` when the server does not answer, cannot
   * serve now or answers too much, or with the reason of the signal.
   */
  async send(method: 'GET' | 'POST', path: string, options: HttpRequest = {}): Promise<HttpAnswer> {
    const { service, timeoutMs, parent } = this;
    const late = (): FloeError => serverFailed(service, `did not answer ${path} within ${timeoutMs / 1000} s`);
    const { signal, release } = abortAfter(systemClock, timeoutMs, late, parent);
    try {
      const answer = await this.exchange(method, path, options, signal);
      if (!UNAVAILABLE.has(answer.status) || options.accepted?.includes(answer.status)) return answer;
      throw serverFailed(service, `answered ${path} with ${quotedReply(answer.status, answer.text)}`);
    } catch (error) {
      if (FloeError.is(error)) throw error;
      signal.throwIfAborted();
      throw serverFailed(service, `did not answer ${path}: ${(error as Error).message}`, error);
    } finally {
      release();
    }
  }

  /**
   * Sends a request and returns the answer, which must be JSON in the form of the schema. Rejects as {@link send}; with `plugin_failed` when
   * the server refuses the request, and with `peer_unreachable` when it fails or its answer has another form.
   */
  async json<T extends z.ZodType>(
    schema: T,
    method: 'GET' | 'POST',
    path: string,
    options: HttpRequest = {},
  ): Promise<z.output<T>> {
    const answer = await this.send(method, path, options);
    if (answer.status >= 500)
      throw serverFailed(this.service, `answered ${path} with ${quotedReply(answer.status, answer.text)}`);
    if (answer.status >= 300)
      throw worldFailed(this.service, `${path} was refused with ${quotedReply(answer.status, answer.text)}`);
    return this.parsed(schema, answer.text, path);
  }

  /** Returns the parsed text of an answer. Throws `peer_unreachable` when it has another form. */
  parsed<T extends z.ZodType>(schema: T, text: string, what: string): z.output<T> {
    try {
      return parseAs(schema, parseJson(text, MAX_VALUES), `the answer to ${what}`);
    } catch (error) {
      throw serverFailed(this.service, `gave an answer of another form: ${(error as Error).message}`, error);
    }
  }

  private async exchange(
    method: 'GET' | 'POST',
    path: string,
    { body, headers = {} }: HttpRequest,
    signal: AbortSignal,
  ): Promise<HttpAnswer> {
    const cookie = [...this.cookies].map(([name, value]) => `${name}=${value}`).join('; ');
    const reply = await openHttp(`${this.service.url}${path}`, {
      method,
      headers: {
        ...authorization(this.service),
        ...(cookie === '' ? {} : { cookie }),
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(body === undefined ? {} : { body: wellFormedJson(body) }),
      signal,
    });
    this.keepCookies(reply.headers['set-cookie']);
    const text = await reply.read(MAX_ANSWER_BYTES, () =>
      serverFailed(this.service, `answered ${path} with more than ${MAX_ANSWER_BYTES / MIB} MiB`),
    );
    return { status: reply.status, text: text.toString('utf8') };
  }

  private keepCookies(lines: string | string[] | undefined): void {
    const headers = new Headers();
    for (const line of [lines ?? []].flat()) headers.append('set-cookie', line);
    for (const { name, value, maxAge } of getSetCookies(headers)) {
      if (value === '' || (maxAge ?? 1) <= 0) this.cookies.delete(name);
      else this.cookies.set(name, value);
    }
    const size = [...this.cookies].reduce((sum, [name, value]) => sum + name.length + value.length, 0);
    if (size > MAX_COOKIE_BYTES) throw serverFailed(this.service, 'set cookies that are too large');
  }
}
