import type { Readable, Writable } from 'node:stream';
import { systemClock } from '@floe-rl/core';

/** Maximum length in bytes of a message of the browser. A longer one ends the connection. */
const MAX_MESSAGE_BYTES = 96 * 1024 * 1024;

/** The parameters of a command or an event, or the result of a command. They come from a browser that runs pages of any kind. */
export type DevToolsValue = Readonly<Record<string, unknown>>;

export type DevToolsEvent = {
  readonly method: string;
  readonly params: DevToolsValue;
  /** The session of the tab; `null` for an event of the browser. */
  readonly sessionId: string | null;
};

/** Why a command has no result: the browser refused it, did not answer in time, or has ended. */
export class DevToolsError extends Error {
  readonly reason: 'refused' | 'late' | 'ended';

  constructor(reason: DevToolsError['reason'], message: string) {
    super(message);
    this.name = 'DevToolsError';
    this.reason = reason;
  }
}

type Pending = {
  readonly sessionId: string | null;
  resolve(result: DevToolsValue): void;
  reject(error: DevToolsError): void;
};

/** A connection to Chromium in its DevTools protocol through two pipes, in which each message ends with a NUL byte. */
export class DevTools {
  private readonly input: Writable;
  private readonly onEvent: (event: DevToolsEvent) => void;
  private readonly onEnd: () => void;
  private readonly pending = new Map<number, Pending>();
  private nextId = 1;
  private chunks: Buffer[] = [];
  private bytes = 0;
  private hasEnded = false;

  /** `onEnd` is called once, when the connection has ended. */
  constructor(input: Writable, output: Readable, onEvent: (event: DevToolsEvent) => void, onEnd: () => void) {
    this.input = input;
    this.onEvent = onEvent;
    this.onEnd = onEnd;
    input.on('error', () => this.end());
    output.on('error', () => this.end());
    output.on('close', () => this.end());
    output.on('data', (chunk: Buffer) => this.receive(chunk));
  }

  /** Sends a command to the browser, or to a tab by its session. Rejects with a {@link DevToolsError}. */
  send(method: string, params: object, sessionId: string | null, timeoutMs: number): Promise<DevToolsValue> {
    if (this.hasEnded) return Promise.reject(new DevToolsError('ended', 'the browser has ended'));
    const id = this.nextId++;
    return new Promise((resolve, reject) => {
      const cancel = systemClock.schedule(timeoutMs, () => {
        this.pending.delete(id);
        reject(new DevToolsError('late', `the page did not respond within ${timeoutMs / 1000} s`));
      });
      this.pending.set(id, {
        sessionId,
        resolve: (result) => {
          cancel();
          resolve(result);
        },
        reject: (error) => {
          cancel();
          reject(error);
        },
      });
      const message = { id, method, params, ...(sessionId === null ? {} : { sessionId }) };
      this.input.write(`${JSON.stringify(message)}\0`);
    });
  }

  /** Rejects the commands to a tab that have no result, because it has crashed or was closed. */
  endSession(sessionId: string, message: string): void {
    for (const [id, { sessionId: own, reject }] of this.pending) {
      if (own !== sessionId) continue;
      this.pending.delete(id);
      reject(new DevToolsError('refused', message));
    }
  }

  private end(): void {
    if (this.hasEnded) return;
    this.hasEnded = true;
    for (const { reject } of this.pending.values()) reject(new DevToolsError('ended', 'the browser has ended'));
    this.pending.clear();
    this.onEnd();
  }

  private receive(chunk: Buffer): void {
    let rest = chunk;
    for (let at = rest.indexOf(0); at >= 0; at = rest.indexOf(0)) {
      const message =
        this.chunks.length === 0 ? rest.subarray(0, at) : Buffer.concat([...this.chunks, rest.subarray(0, at)]);
      this.chunks = [];
      this.bytes = 0;
      rest = rest.subarray(at + 1);
      this.dispatch(message);
    }
    if (rest.length === 0) return;
    this.chunks.push(rest);
    this.bytes += rest.length;
    if (this.bytes > MAX_MESSAGE_BYTES) this.end();
  }

  private dispatch(bytes: Buffer): void {
    const message = parse(bytes);
    if (message === null) {
      this.end();
      return;
    }
    const { id, method, params = {}, sessionId = null, result = {}, error } = message;
    if (id === undefined) {
      if (method !== undefined) this.onEvent({ method, params, sessionId });
      return;
    }
    const pending = this.pending.get(id);
    this.pending.delete(id);
    if (error === undefined) pending?.resolve(result);
    else pending?.reject(new DevToolsError('refused', String(error.message)));
  }
}

type Message = {
  readonly id?: number;
  readonly method?: string;
  readonly params?: DevToolsValue;
  readonly sessionId?: string;
  readonly result?: DevToolsValue;
  readonly error?: { readonly message?: unknown };
};

function parse(bytes: Buffer): Message | null {
  try {
    const value: unknown = JSON.parse(bytes.toString());
    return typeof value === 'object' && value !== null ? value : null;
  } catch {
    return null;
  }
}
