import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { FloeError } from '../core/errors.ts';
import { parseJson } from '../core/parse.ts';

/** Largest body taken: a 1 M token prompt as JSON ids is about 7 MB. */
const MAX_BODY_BYTES = 64 * 2 ** 20;

/** What a literal NaN is written as before the text is sent; JSON.stringify itself would write null. */
export const NAN_MARK = '\u0001NaN\u0001';
const NAN_MARK_JSON = JSON.stringify(NAN_MARK);

/** Within the word `data`. */
const CUT_IN_FIELD = 2;

/** Pieces of one event; enough for any test, and long events stay cheap. */
const MAX_CUTS = 64;

/** One request and its reply. */
export class Exchange {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly url: URL;
  /** Aborts when the client goes away before the reply was complete. */
  readonly signal: AbortSignal;
  private split = false;
  private writing: Promise<void> = Promise.resolve();

  private readonly onDeath: (refusals: number) => void;

  constructor(request: IncomingMessage, response: ServerResponse, onDeath: (refusals: number) => void) {
    this.onDeath = onDeath;
    this.request = request;
    this.response = response;
    this.url = new URL(request.url ?? '/', 'http://sim');
    const controller = new AbortController();
    this.signal = controller.signal;
    const gone = (): void => controller.abort(new FloeError('cancelled', 'the client went away'));
    response.on('close', () => {
      if (!response.writableFinished) gone();
    });
    // A write that loses the race against the client's close.
    response.on('error', gone);
  }

  header(name: string): string | null {
    const value = this.request.headers[name];
    return typeof value === 'string' ? value : null;
  }

  /** The parsed JSON body; an empty body is an empty object. Throws `malformed_json` or `body_too_large`. */
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

  json(status: number, value: unknown, headers: Readonly<Record<string, string>> = {}): void {
    this.text(status, toJson(value), { ...headers, 'content-type': 'application/json' });
  }

  text(status: number, text: string, headers: Readonly<Record<string, string>> = {}): void {
    this.response.writeHead(status, { ...headers, 'content-length': String(Buffer.byteLength(text)) });
    this.response.end(text);
  }

  /** From now on every {@link event} is written in pieces that end within its line and within its characters. */
  splitWrites(): void {
    this.split = true;
  }

  beginStream(headers: Readonly<Record<string, string>> = {}): void {
    this.response.writeHead(200, { ...headers, 'content-type': 'text/event-stream; charset=utf-8' });
  }

  /** Writes one server-sent event; resolves when the client can take more, or has gone. */
  async event(value: unknown): Promise<void> {
    const text = `data: ${typeof value === 'string' ? value : toJson(value)}\n\n`;
    if (!this.split) return this.write(text);
    // Of several choices, each writes its events whole, though in pieces.
    this.writing = this.writing.then(async () => {
      for (const piece of brokenPieces(Buffer.from(text))) {
        await this.write(piece);
        // A turn of its own sends the piece by itself, as far as that is in the sender's hands.
        await nextTurn();
      }
    });
    return this.writing;
  }

  /** As {@link event}, for raw bytes of the reply. */
  async write(bytes: string | Buffer): Promise<void> {
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

  /** As {@link HttpFace.die}. */
  dieServer(refusals: number): void {
    this.onDeath(refusals);
  }

  /** Sends half of a JSON reply, then does `after`. */
  halfJson(value: unknown, after: () => void): void {
    const bytes = Buffer.from(toJson(value));
    this.response.writeHead(200, { 'content-type': 'application/json', 'content-length': bytes.length });
    this.response.write(bytes.subarray(0, Math.floor(bytes.length / 2)), after);
  }
}

/** Cuts after the first bytes of the line, within every character of several bytes, and between the last newlines. */
function brokenPieces(bytes: Buffer): Buffer[] {
  const cuts = [CUT_IN_FIELD];
  for (let i = CUT_IN_FIELD + 1; i < bytes.length - 1 && cuts.length < MAX_CUTS; i++) {
    // A byte of the form 10xxxxxx goes on with the character that the byte before began.
    const goesOn = ((bytes[i] as number) & 0xc0) === 0x80;
    if (goesOn && ((bytes[i - 1] as number) & 0xc0) === 0xc0) cuts.push(i);
  }
  cuts.push(bytes.length - 1, bytes.length);
  return cuts.map((cut, index) => bytes.subarray(cuts[index - 1] ?? 0, cut));
}

function toJson(value: unknown): string {
  const text = JSON.stringify(value);
  return text.includes(NAN_MARK_JSON) ? text.replaceAll(NAN_MARK_JSON, 'NaN') : text;
}

export type Handler = (exchange: Exchange) => Promise<void> | void;

/** Handlers by `METHOD /path`. */
export type RouteTable = Readonly<Record<string, Handler>>;

/** How a face reports an error. The reply has not begun. */
export type ErrorReplier = (exchange: Exchange, error: FloeError) => void;

/** A loopback HTTP server over a route table. */
export class HttpFace {
  private readonly server: Server;
  private readonly sockets = new Set<Socket>();
  private refusals = 0;

  constructor(routes: RouteTable, replyError: ErrorReplier) {
    this.server = createServer((request, response) => {
      void serve(new Exchange(request, response, (refusals) => this.die(refusals)), routes, replyError);
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
   * Resets every connection, and the next `refusals` ones as soon as they are made: as near to a dead process as one that
   * is to come back by itself can get.
   */
  die(refusals: number): void {
    this.refusals = refusals;
    for (const socket of this.sockets) socket.resetAndDestroy();
  }

  /** Throws `setup_failed` when the address is taken. Resolves to the base URL. */
  async listen(host: string, port: number): Promise<string> {
    await new Promise<void>((resolve, reject) => {
      this.server.once('error', (cause) =>
        reject(new FloeError('setup_failed', `cannot listen on ${host}:${port}: ${cause.message}`, {}, cause)),
      );
      this.server.listen(port, host, resolve);
    });
    const address = this.server.address() as AddressInfo;
    return `http://${host.includes(':') ? `[${host}]` : host}:${address.port}`;
  }

  /** Breaks every connection and stops listening. */
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
    const known = Object.keys(routes).some((route) => route.endsWith(` ${path}`));
    exchange.json(known ? 405 : 404, { detail: known ? 'Method Not Allowed' : 'Not Found' });
  } catch (thrown) {
    if (exchange.response.headersSent || exchange.signal.aborted) {
      exchange.response.destroy();
      return;
    }
    const error = FloeError.is(thrown) ? thrown : new FloeError('internal', String(thrown), {}, thrown);
    replyError(exchange, error);
  }
}
