import { subscribe } from 'node:diagnostics_channel';
import { abortAfter, type Clock, type FloeError, onAbort, parseJson, systemClock, wellFormedJson } from '@floe-rl/core';
import { Agent, ping, WebSocket } from 'undici';
import { MAX_ANSWER_BYTES } from './http.ts';
import { authorization, type RemoteService, serverFailed } from './service.ts';

/** Interval of heartbeats in milliseconds. */
const HEARTBEAT_MS = 20_000;
/** Number of heartbeats without an answer after which the connection is dead. */
const MAX_MISSED = 3;
const MAX_VALUES = 1_000_000;
/** Time in milliseconds for which the end of a connection is waited for. */
const CLOSE_MS = 1_000;

/** Called when a server answers a heartbeat, by socket. */
const answered = new WeakMap<WebSocket, () => void>();
subscribe('undici:websocket:pong', (message) => {
  answered.get((message as { readonly websocket: WebSocket }).websocket)?.();
});

type Waiter = { resolve(value: unknown): void; reject(error: Error): void };

export type SocketOptions = {
  /** Aborts when the episode must end. */
  readonly signal: AbortSignal;
  /** Time limit for connecting in milliseconds. */
  readonly timeoutMs: number;
  readonly clock?: Clock;
};

/**
 * A WebSocket that has one answer for each request. It fails for good, with `peer_unreachable`, when the connection ends, an answer is late, a
 * message arrives without a request, or heartbeats are not answered. The server's state of the episode is unknown after that, so the episode
 * cannot be continued.
 */
export class RemoteSocket {
  private readonly service: RemoteService;
  private readonly clock: Clock;
  private readonly agent = new Agent({ webSocket: { maxPayloadSize: MAX_ANSWER_BYTES } });
  private readonly socket: WebSocket;
  private readonly releaseSignal: () => void;
  private waiter: Waiter | null = null;
  /** A message that arrived before the first request. Servers refuse a connection with such a message. */
  private early: string | null = null;
  private isAsked = false;
  private failure: Error | null = null;
  private missed = 0;
  private cancelHeartbeat = (): void => {};

  private constructor(service: RemoteService, path: string, options: SocketOptions) {
    this.service = service;
    this.clock = options.clock ?? systemClock;
    const url = `${service.url.replace(/^http/, 'ws')}${path}`;
    this.socket = new WebSocket(url, { dispatcher: this.agent, headers: authorization(service) });
    this.releaseSignal = onAbort(options.signal, () => this.fail(options.signal.reason));
    answered.set(this.socket, () => {
      this.missed = 0;
    });
    this.socket.addEventListener('message', ({ data }) => this.receive(data));
    this.socket.addEventListener('error', ({ message }) => this.end(message === '' ? '' : `: ${message}`));
    this.socket.addEventListener('close', ({ code, reason }) => this.end(` (${[code, reason].join(' ').trim()})`));
  }

  /** Connects. Rejects with `peer_unreachable`, or with the reason of the signal. */
  static async connect(service: RemoteService, path: string, options: SocketOptions): Promise<RemoteSocket> {
    const connection = new RemoteSocket(service, path, options);
    const opened = new Promise<unknown>((resolve, reject) => {
      connection.waiter = { resolve, reject };
      connection.socket.addEventListener('open', () => connection.settle(null), { once: true });
    });
    await connection.within(opened, options.timeoutMs, 'could not be reached');
    connection.beat();
    return connection;
  }

  /** Sends a message and resolves with its answer. Rejects with `peer_unreachable`, or with the reason of the signal. */
  async request(message: object, timeoutMs: number): Promise<unknown> {
    const { early } = this;
    if (early !== null) {
      this.early = null;
      return this.parsed(early);
    }
    if (this.failure !== null) throw this.failure;
    this.isAsked = true;
    const answer = new Promise<unknown>((resolve, reject) => {
      this.waiter = { resolve, reject };
    });
    this.socket.send(wellFormedJson(message));
    return this.within(answer, timeoutMs, 'did not answer');
  }

  /** Sends a message without an answer, and ends the connection. May be called twice. */
  async close(message: object): Promise<void> {
    if (this.failure === null && this.socket.readyState === WebSocket.OPEN) {
      const closed = new Promise((resolve) => this.socket.addEventListener('close', resolve, { once: true }));
      this.socket.send(JSON.stringify(message));
      this.socket.close();
      const { signal, release } = abortAfter(this.clock, CLOSE_MS, () => new Error('late'));
      await Promise.race([closed, new Promise((resolve) => onAbort(signal, () => resolve(null)))]);
      release();
    }
    this.fail(serverFailed(this.service, 'is not connected: the episode has ended'));
    await this.agent.destroy();
  }

  private async within(answer: Promise<unknown>, timeoutMs: number, problem: string): Promise<unknown> {
    const late = (): FloeError => serverFailed(this.service, `${problem} within ${timeoutMs / 1000} s`);
    const { signal, release } = abortAfter(this.clock, timeoutMs, late);
    const unlisten = onAbort(signal, () => this.fail(signal.reason));
    try {
      return await answer;
    } finally {
      unlisten();
      release();
    }
  }

  private receive(data: unknown): void {
    if (typeof data !== 'string') this.fail(serverFailed(this.service, 'sent a message that is no text'));
    else if (this.waiter !== null && this.isAsked) this.answer(data);
    else if (!this.isAsked && this.early === null) this.early = data;
    else this.fail(serverFailed(this.service, 'sent a message that nothing had asked for'));
  }

  private answer(text: string): void {
    try {
      this.settle(this.parsed(text));
    } catch (error) {
      this.fail(error as Error);
    }
  }

  private parsed(text: string): unknown {
    try {
      return parseJson(text, MAX_VALUES);
    } catch (error) {
      throw serverFailed(this.service, `sent a message that is no JSON: ${(error as Error).message}`, error);
    }
  }

  private settle(value: unknown): void {
    const { waiter } = this;
    this.waiter = null;
    waiter?.resolve(value);
  }

  private end(detail: string): void {
    this.fail(serverFailed(this.service, `ended the connection${detail}`));
  }

  private fail(error: Error): void {
    if (this.failure !== null) return;
    this.failure = error;
    this.cancelHeartbeat();
    this.releaseSignal();
    const { waiter } = this;
    this.waiter = null;
    waiter?.reject(error);
    void this.agent.destroy();
  }

  private beat(): void {
    this.cancelHeartbeat = this.clock.schedule(HEARTBEAT_MS, () => {
      if (this.failure !== null) return;
      if (this.missed >= MAX_MISSED) {
        this.fail(serverFailed(this.service, `answered none of ${MAX_MISSED} heartbeats`));
        return;
      }
      this.missed++;
      ping(this.socket);
      this.beat();
    });
  }
}
