import type { Readable, Writable } from 'node:stream';
import { LineReader, PendingRequests, systemClock } from '@floe-rl/core';

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

/** A connection to Chromium in its DevTools protocol through two pipes, in which each message ends with a NUL byte. */
export class DevTools {
  private readonly input: Writable;
  private readonly onEvent: (event: DevToolsEvent) => void;
  private readonly onEnd: () => void;
  /** The commands without a result, with the sessions of their tabs. */
  private readonly commands = new PendingRequests<DevToolsValue, string | null>();
  private hasEnded = false;

  /** `onEnd` is called once, when the connection has ended. */
  constructor(input: Writable, output: Readable, onEvent: (event: DevToolsEvent) => void, onEnd: () => void) {
    this.input = input;
    this.onEvent = onEvent;
    this.onEnd = onEnd;
    input.on('error', () => this.end());
    output.on('error', () => this.end());
    output.on('close', () => this.end());
    const reader = new LineReader(MAX_MESSAGE_BYTES, (message) => this.receive(message), 0);
    output.on('data', (chunk: Buffer) => {
      if (!this.hasEnded && !reader.push(chunk)) this.end();
    });
  }

  /** Sends a command to the browser, or to a tab by its session. Rejects with a {@link DevToolsError}. */
  send(method: string, params: object, sessionId: string | null, timeoutMs: number): Promise<DevToolsValue> {
    const error = (): DevToolsError =>
      new DevToolsError('late', `the page did not respond within ${timeoutMs / 1000} s`);
    const { id, reply } = this.commands.add(sessionId, { deadline: { clock: systemClock, limitMs: timeoutMs, error } });
    const message = { id, method, params, ...(sessionId === null ? {} : { sessionId }) };
    if (!this.hasEnded) this.input.write(`${JSON.stringify(message)}\0`);
    return reply;
  }

  /** Rejects the commands to a tab that have no result, because it has crashed or was closed. */
  endSession(sessionId: string, message: string): void {
    for (const [id, own] of this.commands.entries()) {
      if (own === sessionId) this.commands.reject(id, new DevToolsError('refused', message));
    }
  }

  private end(): void {
    if (this.hasEnded) return;
    this.hasEnded = true;
    this.commands.end(() => new DevToolsError('ended', 'the browser has ended'));
    this.onEnd();
  }

  private receive(bytes: Buffer): void {
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
    if (error === undefined) this.commands.resolve(id, result);
    else this.commands.reject(id, new DevToolsError('refused', String(error.message)));
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
