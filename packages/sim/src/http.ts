import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { FloeError, listenError, MIB, nextEventLoopTurn, parseJson } from '@floe-rl/core';

/** Maximum number of bytes of a request body. A prompt of a million ids takes about 7 MB of JSON. */
const MAX_BODY_BYTES = 64 * MIB;

/** Placeholder for NaN in a value to be sent. JSON.stringify would write `null` for NaN, so NaN is inserted after serialization. */
export const NAN_PLACEHOLDER = '\u0001NaN\u0001';
const NAN_PLACEHOLDER_JSON = JSON.stringify(NAN_PLACEHOLDER);

/** Byte offset of the first cut in a server-sent event that is sent in pieces. It lies inside the field name `data`. */
const FIRST_CUT = 2;

/** Maximum number of cuts inside the text of one server-sent event, so that a long event does not become thousands of writes. */
const MAX_CUTS = 64;

/** One HTTP request and its reply, with methods to read the request and to send the reply. */
export class Exchange {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly url: URL;
  /** A signal that is aborted when the client disconnects before the reply is complete. */
  readonly signal: AbortSignal;
  private split = false;
  private pendingWrites: Promise<void> = Promise.resolve();
  private readonly onCrash: (refusals: number) => void;

  constructor(request: IncomingMessage, response: ServerResponse, onCrash: (refusals: number) => void) {
    this.onCrash = onCrash;
    this.request = request;
    this.response = response;
    this.url = new URL(request.url ?? '/', 'http://sim');
    const controller = new AbortController();
    this.signal = controller.signal;
    const onDisconnect = (): void => controller.abort(new FloeError('cancelled', 'the client disconnected'));
    response.on('close', () => {
      if (!response.writableFinished) onDisconnect();
    });
    // The response emits an error when the client closes the connection during a write; the call is then aborted as for any disconnect.
    response.on('error', onDisconnect);
  }

  /** Returns the value of a request header; `null` when the header is absent or occurs more than once. */
  header(name: string): string | null {
    const value = this.request.headers[name];
    return typeof value === 'string' ? value : null;
  }

  /**
   * Reads the body and parses it as JSON. Returns an empty object for an empty body. Throws `malformed_json` for text that is not JSON, and
   * `body_too_large` for more than {@link MAX_BODY_BYTES} bytes.
   */
  async body(): Promise<unknown> {
    const chunks: Buffer[] = [];
    let bytes = 0;
    for await (const chunk of this.request) {
      bytes += chunk.length;
      if (bytes > MAX_BODY_BYTES) throw new FloeError('body_too_large', `the body exceeds ${MAX_BODY_BYTES} bytes`);
      chunks.push(chunk);
    }
    return bytes === 0 ? {} : parseJson(Buffer.concat(chunks));
  }

  /** Sends `value` as JSON and ends the reply. */
  json(status: number, value: unknown, headers: Readonly<Record<string, string>> = {}): void {
    this.text(status, toJson(value), { ...headers, 'content-type': 'application/json' });
  }

  /** Sends `text` and ends the reply. */
  text(status: number, text: string, headers: Readonly<Record<string, string>> = {}): void {
    this.response.writeHead(status, { ...headers, 'content-length': String(Buffer.byteLength(text)) });
    this.response.end(text);
  }

  /** Makes {@link event} send every later event in several pieces, cut in the middle of its line and inside multi-byte characters. */
  splitWrites(): void {
    this.split = true;
  }

  /** Sends the headers of a stream of server-sent events. */
  beginStream(headers: Readonly<Record<string, string>> = {}): void {
    this.response.writeHead(200, { ...headers, 'content-type': 'text/event-stream; charset=utf-8' });
  }

  /** Writes one server-sent event. Resolves when the connection accepts more data, or when the client has disconnected. */
  async event(value: unknown): Promise<void> {
    const text = `data: ${typeof value === 'string' ? value : toJson(value)}\n\n`;
    if (!this.split) return this.write(text);
    // Writes are queued, so that choices sampled concurrently do not interleave the pieces of their events.
    this.pendingWrites = this.pendingWrites.then(async () => {
      for (const part of splitEvent(Buffer.from(text))) {
        await this.write(part);
        // Yielding to the event loop makes it likely that each piece is sent as a separate packet.
        await nextEventLoopTurn();
      }
    });
    return this.pendingWrites;
  }

  private async write(bytes: string | Buffer): Promise<void> {
    if (this.signal.aborted || this.response.write(bytes)) return;
    await new Promise<void>((resolve) => {
      const done = (): void => {
        this.response.off('drain', done);
        this.response.off('close', done);
        resolve();
      };
      this.response.on('drain', done);
      this.response.on('close', done);
    });
  }

  end(): void {
    this.response.end();
  }

  /** Closes the connection with a TCP reset. */
  reset(): void {
    this.request.socket.resetAndDestroy();
  }

  /** Simulates a crash of the whole server; see {@link SimHttpServer.crash}. */
  crashServer(refusals: number): void {
    this.onCrash(refusals);
  }

  /** Sends the first half of a JSON reply, then calls `onSent`. */
  sendHalfJson(value: unknown, onSent: () => void): void {
    const bytes = Buffer.from(toJson(value));
    this.response.writeHead(200, { 'content-type': 'application/json', 'content-length': bytes.length });
    this.response.write(bytes.subarray(0, Math.floor(bytes.length / 2)), onSent);
  }
}

/** Cuts an event into pieces: after the first bytes of its line, inside every multi-byte character, and between the last two newlines. */
function splitEvent(bytes: Buffer): Buffer[] {
  const cuts = [FIRST_CUT];
  for (let i = FIRST_CUT + 1; i < bytes.length - 1 && cuts.length < MAX_CUTS; i++) {
    // Finds the second byte of each multi-byte character: a byte of the form 10xxxxxx that follows a byte of the form 11xxxxxx.
    const isContinuation = ((bytes[i] as number) & 0xc0) === 0x80;
    if (isContinuation && ((bytes[i - 1] as number) & 0xc0) === 0xc0) cuts.push(i);
  }
  cuts.push(bytes.length - 1, bytes.length);
  return cuts.map((cut, index) => bytes.subarray(cuts[index - 1] ?? 0, cut));
}

function toJson(value: unknown): string {
  const text = JSON.stringify(value);
  return text.includes(NAN_PLACEHOLDER_JSON) ? text.replaceAll(NAN_PLACEHOLDER_JSON, 'NaN') : text;
}

export type Handler = (exchange: Exchange) => Promise<void> | void;

/** Request handlers, keyed by `METHOD /path`. */
export type RouteTable = Readonly<Record<string, Handler>>;

/** Sends an error in the format of one API. It is called only when no part of the reply has been sent. */
export type ErrorReplier = (exchange: Exchange, error: FloeError) => void;

/** An HTTP server that dispatches requests by a route table. */
export class SimHttpServer {
  private readonly server: Server;
  private readonly sockets = new Set<Socket>();
  private refusals = 0;

  constructor(routes: RouteTable, replyError: ErrorReplier) {
    this.server = createServer((request, response) => {
      void serve(new Exchange(request, response, (refusals) => this.crash(refusals)), routes, replyError);
    });
    this.server.on('connection', (socket: Socket) => {
      if (this.refusals > 0) {
        this.refusals--;
        socket.resetAndDestroy();
        return;
      }
      this.sockets.add(socket);
      socket.on('close', () => this.sockets.delete(socket));
    });
  }

  /**
   * Simulates a crash followed by a restart: resets every open connection, and then resets the next `refusals` connections as soon as they
   * are accepted.
   */
  crash(refusals: number): void {
    this.refusals = refusals;
    for (const socket of this.sockets) socket.resetAndDestroy();
  }

  /** Starts to listen and resolves to the base URL. Throws `setup_failed` when the address cannot be used. */
  async listen(host: string, port: number): Promise<string> {
    await new Promise<void>((resolve, reject) => {
      this.server.once('error', (cause) =>
        reject(listenError('the simulated engine', { host, port }, { host: '--host', port: '--port' }, cause)),
      );
      this.server.listen(port, host, resolve);
    });
    const address = this.server.address() as AddressInfo;
    return `http://${host.includes(':') ? `[${host}]` : host}:${address.port}`;
  }

  /** Closes every connection and stops listening. */
  async close(): Promise<void> {
    if (!this.server.listening) return;
    await new Promise<void>((resolve) => {
      this.server.close(() => resolve());
      this.server.closeAllConnections();
    });
  }
}

async function serve(exchange: Exchange, routes: RouteTable, replyError: ErrorReplier): Promise<void> {
  const { method = 'GET' } = exchange.request;
  const path = exchange.url.pathname;
  const handler = routes[`${method} ${path}`];
  try {
    if (handler !== undefined) return await handler(exchange);
    const isKnownPath = Object.keys(routes).some((route) => route.endsWith(` ${path}`));
    exchange.json(isKnownPath ? 405 : 404, { detail: isKnownPath ? 'Method Not Allowed' : 'Not Found' });
  } catch (thrown) {
    if (exchange.response.headersSent || exchange.signal.aborted) {
      exchange.response.destroy();
      return;
    }
    const error = FloeError.is(thrown) ? thrown : new FloeError('internal', String(thrown), {}, thrown);
    replyError(exchange, error);
  }
}
