import { FloeError, MIB, onAbort } from '@floe-rl/core';
import type { Dispatcher, Pool } from 'undici';

/**
 * Maximum size of a reply's body in bytes; a longer reply is an error. A reply with a million token ids and log-probabilities has about 110
 * MB.
 */
const MAX_REPLY_BYTES = 256 * MIB;

/** Error codes of failures before a connection exists: the request was not sent, so no token was sampled. */
const NOT_SENT_CODES = new Set([
  'ECONNREFUSED',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'ETIMEDOUT',
  'UND_ERR_CONNECT_TIMEOUT',
]);

/** Error codes for a lost connection. They are checked only when the failure occurred before the first byte of a reply. */
const CONNECTION_LOST_CODES = new Set(['UND_ERR_SOCKET', 'ECONNRESET', 'EPIPE']);

export type ReplyHeaders = Record<string, string | string[] | undefined>;

/** A reply whose status and headers have arrived and whose body has not been read yet. The caller must call either `read` or `each`. */
export type OpenReply = {
  readonly status: number;
  readonly headers: ReplyHeaders;
  /** Reads the whole body and resolves with its bytes. */
  read(): Promise<Buffer>;
  /**
   * Passes the chunks of the reply's body to `take` until `take` returns true or throws, or the body ends. Rejects with the error that
   * `take` throws.
   */
  each(take: TakeChunk): Promise<void>;
};

type TakeChunk = (chunk: Buffer) => boolean;

type HttpRequest = {
  readonly method: 'GET' | 'POST';
  readonly path: string;
  readonly headers: Record<string, string>;
  readonly body?: string | Buffer;
  readonly signal: AbortSignal;
};

/**
 * Sends a request and resolves when the status and the headers of its reply have arrived. Rejects, as do the reply's methods, with the
 * signal's reason when the signal aborts, and with an error that names the engine when the connection fails.
 */
export function openReply(pool: Pool, engineId: string, request: HttpRequest): Promise<OpenReply> {
  return new Promise((resolve, reject) => {
    const { signal, method, path, headers, body = null } = request;
    if (signal.aborted) return reject(signal.reason);
    pool.dispatch({ method, path, headers, body }, new HttpExchange(engineId, signal, resolve, reject));
  });
}

type Reader = {
  readonly take: TakeChunk;
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
};

/**
 * One request and its reply. It receives undici's events directly, because the body stream that `Pool.request` makes costs more than the
 * rest of a small exchange.
 */
class HttpExchange implements Dispatcher.DispatchHandler, OpenReply {
  status = 0;
  headers: ReplyHeaders = {};
  private readonly engineId: string;
  private readonly opened: (reply: OpenReply) => void;
  private readonly refused: (error: unknown) => void;
  private readonly removeListener: () => void;
  private controller: Dispatcher.DispatchController | null = null;
  private hasBegun = false;
  /** Chunks that arrived before the caller began to read the body. */
  private early: Buffer[] = [];
  private bytes = 0;
  private reader: Reader | null = null;
  private isDiscarded = false;
  private hasEnded = false;
  private failure: { readonly error: unknown } | null = null;

  constructor(
    engineId: string,
    signal: AbortSignal,
    opened: (reply: OpenReply) => void,
    refused: (error: unknown) => void,
  ) {
    this.engineId = engineId;
    this.opened = opened;
    this.refused = refused;
    this.removeListener = onAbort(signal, () => this.abort(signal.reason));
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.controller = controller;
    if (this.failure !== null) controller.abort(this.failure.error as Error);
  }

  onResponseStart(_: Dispatcher.DispatchController, status: number, headers: ReplyHeaders): void {
    // Informational responses, such as 103, precede the reply.
    if (status < 200) return;
    this.status = status;
    this.headers = headers;
    this.hasBegun = true;
    this.opened(this);
  }

  onResponseData(_: Dispatcher.DispatchController, chunk: Buffer): void {
    this.bytes += chunk.length;
    if (this.bytes > MAX_REPLY_BYTES) this.abort(tooLargeError(this.engineId));
    else if (this.reader !== null) this.give(this.reader, chunk);
    else this.early.push(chunk);
  }

  onResponseEnd(): void {
    this.hasEnded = true;
    this.removeListener();
    this.reader?.resolve();
  }

  onResponseError(_: unknown, thrown: Error): void {
    this.fail(FloeError.is(thrown) ? thrown : transportError(thrown, this.engineId, this.hasBegun));
  }

  read(): Promise<Buffer> {
    // A small body usually arrives together with the headers.
    if (this.hasEnded && this.failure === null) return Promise.resolve(joined(this.early));
    const chunks: Buffer[] = [];
    return this.each((chunk) => chunks.push(chunk) === 0).then(() => joined(chunks));
  }

  each(take: TakeChunk): Promise<void> {
    return new Promise((resolve, reject) => {
      const reader = { take, resolve, reject };
      this.reader = reader;
      for (const chunk of this.early.splice(0)) this.give(reader, chunk);
      if (this.failure !== null) reject(this.failure.error);
      else if (this.hasEnded) resolve();
    });
  }

  private give({ take, resolve, reject }: Reader, chunk: Buffer): void {
    if (this.failure !== null || this.isDiscarded) return;
    try {
      if (!take(chunk)) return;
      // The rest of the body is discarded, so that the connection can be reused.
      this.isDiscarded = true;
      resolve();
    } catch (error) {
      this.isDiscarded = true;
      reject(error);
      this.abort(error);
    }
  }

  private abort(reason: unknown): void {
    this.fail(reason);
    this.controller?.abort(reason as Error);
  }

  private fail(error: unknown): void {
    if (this.failure !== null || this.hasEnded) return;
    this.failure = { error };
    this.removeListener();
    if (this.hasBegun) this.reader?.reject(error);
    else this.refused(error);
  }
}

function joined(chunks: readonly Buffer[]): Buffer {
  return chunks.length === 1 ? (chunks[0] as Buffer) : Buffer.concat(chunks);
}

function transportError(thrown: unknown, engineId: string, hasBegun: boolean): FloeError {
  const code = String((thrown as { code?: unknown }).code ?? '');
  const message = thrown instanceof Error && thrown.message !== '' ? thrown.message : code || String(thrown);
  const details = { engine_id: engineId };
  if (hasBegun) {
    const brokenOff = { ...details, broken_off: true };
    return new FloeError('engine_error', `engine ${engineId} broke off its reply: ${message}`, brokenOff, thrown);
  }
  if (thrown instanceof AggregateError || NOT_SENT_CODES.has(code)) {
    return new FloeError('engine_unavailable', `engine ${engineId} cannot be reached: ${message}`, details, thrown);
  }
  if (CONNECTION_LOST_CODES.has(code)) {
    const lost = { ...details, connection_lost: true };
    return new FloeError('engine_unavailable', `engine ${engineId} closed the connection: ${message}`, lost, thrown);
  }
  return new FloeError('engine_error', `engine ${engineId} failed: ${message}`, details, thrown);
}

function tooLargeError(engineId: string): FloeError {
  return new FloeError('engine_error', `engine ${engineId}: the reply exceeds ${MAX_REPLY_BYTES} bytes`, {
    engine_id: engineId,
  });
}
