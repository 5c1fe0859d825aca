import type { IncomingHttpHeaders } from 'node:http';
import type { Readable } from 'node:stream';
import { type Dispatcher, request } from 'undici';
import { abortAfter } from '../abort.ts';
import { KIB } from '../bytes.ts';
import type { Clock } from '../clock.ts';
import { GatheredBytes } from '../gathered-bytes.ts';
import { type HttpAgent, type HttpPool, NO_TIME_LIMITS } from './connections.ts';

/** Characters of a body that an error message quotes. */
const QUOTED_CHARS = 200;
/** Default number of bytes that are read of a dropped body. A longer body ends its connection. */
const DROPPED_BYTES = 128 * KIB;

export type HttpRequest = {
  readonly method: 'GET' | 'POST' | 'DELETE';
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string | Buffer | Readable;
  readonly signal?: AbortSignal | undefined;
  /** The connections that a request to a URL uses. By default, the whole process shares them. */
  readonly agent?: HttpAgent;
};

/** Deadline and size limit of a whole call. */
export type HttpLimits = {
  readonly clock: Clock;
  /** Time limit in milliseconds on `clock`. */
  readonly limitMs: number;
  /** Returns the error of a late call. */
  readonly late: () => Error;
  /** Maximum size of the reply's body in bytes. */
  readonly maxBytes: number;
  /** Returns the error for a reply that is larger than `maxBytes`. */
  readonly tooLarge: () => Error;
};

export type HttpReply = { readonly status: number; readonly headers: IncomingHttpHeaders; readonly body: Buffer };

/** A reply whose status and headers have arrived. The caller must read its body or drop it. */
export class OpenHttpReply {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  private readonly stream: Dispatcher.ResponseData['body'];

  constructor({ statusCode, headers, body }: Dispatcher.ResponseData) {
    this.status = statusCode;
    this.headers = headers;
    this.stream = body;
  }

  /** The body in chunks, without a limit. */
  get chunks(): AsyncIterable<Buffer> {
    return this.stream;
  }

  /** Reads the body. Ends the request and rejects with the error of `tooLarge` as soon as the body has more than `maxBytes` bytes. */
  async read(maxBytes: number, tooLarge: () => Error): Promise<Buffer> {
    const gathered = new GatheredBytes(maxBytes);
    for await (const chunk of this.chunks) {
      if (gathered.length + chunk.length > maxBytes) throw tooLarge();
      gathered.add(chunk);
    }
    return gathered.take();
  }

  /** Drops the body, so that the connection can be reused unless more than `maxBytes` follow. Ignores a failure while the rest arrives. */
  async drop(maxBytes = DROPPED_BYTES): Promise<void> {
    await this.stream.dump({ limit: maxBytes }).catch(() => {});
  }
}

/**
 * Sends a request to a URL and resolves when the headers of the reply have arrived, whatever its status. Redirects are not followed. Rejects
 * with the reason of the signal or with the error of the connection; reading the body rejects in the same cases.
 */
export async function openHttp(url: string | URL, { agent, ...options }: HttpRequest): Promise<OpenHttpReply> {
  const dispatcher = agent === undefined ? {} : { dispatcher: agent };
  return new OpenHttpReply(await request(url, { ...NO_TIME_LIMITS, ...dispatcher, ...options }));
}

/** Sends a request as {@link openHttp} does, to the server of a pool. The path is sent as it is. */
export async function openHttpPath(
  pool: HttpPool,
  path: string,
  options: Omit<HttpRequest, 'agent'>,
): Promise<OpenHttpReply> {
  return new OpenHttpReply(await pool.request({ ...options, path }));
}

/**
 * Makes a call with limits of time and size, and resolves with the whole reply, whatever its status. Rejects with the errors of the limits,
 * with the reason of the signal, or with the error of the connection.
 */
export function callHttp(url: string | URL, options: HttpRequest, limits: HttpLimits): Promise<HttpReply> {
  return beforeDeadline(url, options, limits, async (reply) => {
    const body = await reply.read(limits.maxBytes, limits.tooLarge);
    return { status: reply.status, headers: reply.headers, body };
  });
}

/** Makes a call as {@link callHttp} does, drops the body of the reply and resolves with its status. */
export function callHttpStatus(
  url: string | URL,
  options: HttpRequest,
  limits: Omit<HttpLimits, 'maxBytes' | 'tooLarge'>,
): Promise<number> {
  return beforeDeadline(url, options, limits, async (reply) => {
    await reply.drop();
    return reply.status;
  });
}

/** Returns the status of a reply and the beginning of its body, for error messages. */
export function quotedReply(status: number, text: string): string {
  return `status ${status}: ${text.slice(0, QUOTED_CHARS)}`;
}

async function beforeDeadline<T>(
  url: string | URL,
  options: HttpRequest,
  { clock, limitMs, late }: Pick<HttpLimits, 'clock' | 'limitMs' | 'late'>,
  read: (reply: OpenHttpReply) => Promise<T>,
): Promise<T> {
  const { signal, release } = abortAfter(clock, limitMs, late, options.signal);
  try {
    return await read(await openHttp(url, { ...options, signal }));
  } finally {
    release();
  }
}
