import { randomUUID } from 'node:crypto';
import pg from 'pg';
import type { Clock } from '../../core/clock.ts';
import { BoundedClient } from './client.ts';

const CHANNEL = 'floe';

/** What is announced within this time goes out together: a notification costs the server a lock that all of them share. */
const COALESCE_MS = 5;

/** PostgreSQL takes payloads below 8000 bytes; the rest is for the sender and the counter. */
const PART_BYTES = 7_900;

/** Announcements are hints. Beyond this much at once, listeners find out by looking again. */
const MAX_PENDING_BYTES = 1_048_576;

const FIRST_RECONNECT_MS = 100;
const MAX_RECONNECT_MS = 2_000;

type Part = { readonly sender: string; readonly last: boolean; readonly text: string };

/**
 * Messages between the servers of one database, over LISTEN and NOTIFY on a connection of its own. Best effort: while the
 * connection is down they are lost.
 */
export class Announcements {
  private readonly config: pg.ClientConfig;
  private readonly clock: Clock;
  private readonly self = randomUUID();
  private readonly listeners = new Set<(message: string) => void>();
  private pending: string[] = [];
  private pendingBytes = 0;
  private parts = 0;
  private sending = false;
  /** Beginnings of messages that came in several parts, by sender. */
  private readonly begun = new Map<string, string>();
  private client: { readonly raw: pg.Client; readonly bounded: BoundedClient } | null = null;
  private cancelTimer: () => void = () => {};
  private reconnectMs = FIRST_RECONNECT_MS;
  private connecting: Promise<void> = Promise.resolve();
  private closed = false;

  constructor(config: pg.ClientConfig, clock: Clock) {
    this.config = config;
    this.clock = clock;
  }

  /** Resolves when messages of others are heard; the connection is renewed in the background from then on. */
  async start(): Promise<void> {
    this.connecting = this.connect();
    await this.connecting;
  }

  announce(message: string): void {
    if (this.client === null || this.pendingBytes + message.length > MAX_PENDING_BYTES) return;
    this.pendingBytes += message.length;
    if (this.pending.push(message) === 1 && !this.sending)
      this.cancelTimer = this.clock.schedule(COALESCE_MS, () => void this.send());
  }

  listen(listener: (message: string) => void): () => void {
    // Of its own, so that one function may listen twice and stop once.
    const own = (message: string): void => listener(message);
    this.listeners.add(own);
    return () => this.listeners.delete(own);
  }

  async close(): Promise<void> {
    this.closed = true;
    this.cancelTimer();
    await this.connecting;
    const client = this.client;
    this.client = null;
    await client?.raw.end();
  }

  private async connect(): Promise<void> {
    const raw = new pg.Client(this.config);
    const client = { raw, bounded: new BoundedClient(raw, this.clock, new Map()) };
    raw.on('error', () => {});
    raw.on('notification', ({ payload }) => this.hear(payload ?? ''));
    raw.on('end', () => this.lost(client));
    try {
      await raw.connect();
      // A lost notification is found by looking again, which is cheaper than a sync to disk for each.
      await client.bounded.run('set synchronous_commit = off');
      await client.bounded.run(`listen ${CHANNEL}`);
    } catch {
      raw.connection.stream.destroy();
      this.connectLater();
      return;
    }
    this.reconnectMs = FIRST_RECONNECT_MS;
    this.client = client;
    if (raw.connection.stream.destroyed) this.lost(client);
  }

  private lost(client: object): void {
    if (this.client !== client) return;
    this.client = null;
    this.begun.clear();
    this.drop();
    this.connectLater();
  }

  private connectLater(): void {
    if (this.closed) return;
    this.cancelTimer = this.clock.schedule(this.reconnectMs, () => {
      this.connecting = this.connect();
    });
    this.reconnectMs = Math.min(MAX_RECONNECT_MS, this.reconnectMs * 2);
  }

  private drop(): void {
    this.pending = [];
    this.pendingBytes = 0;
  }

  private async send(): Promise<void> {
    const client = this.client;
    if (client === null || this.pending.length === 0) return;
    const parts = this.partsOf(this.pending);
    this.drop();
    this.sending = true;
    try {
      await client.bounded.run('select pg_notify($1, part) from unnest($2::text[]) as part', [CHANNEL, parts]);
    } catch {
      // The connection is broken, which `lost` is told of; or the server's queue is full, and then hints have to wait.
      this.drop();
    } finally {
      this.sending = false;
    }
    if (this.pending.length > 0) this.cancelTimer = this.clock.schedule(COALESCE_MS, () => void this.send());
  }

  /** `<sender> <number><. for the last, else +><text>`. The number keeps equal parts from being taken for repetitions. */
  private partsOf(messages: readonly string[]): string[] {
    // ASCII only, so that a part may end anywhere and its length is its size.
    const text = JSON.stringify(messages).replace(
      /[\u007f-\uffff]/g,
      (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
    );
    const parts: string[] = [];
    for (let at = 0; at < text.length; at += PART_BYTES) {
      const last = at + PART_BYTES >= text.length;
      parts.push(`${this.self} ${this.parts++}${last ? '.' : '+'}${text.slice(at, at + PART_BYTES)}`);
    }
    return parts;
  }

  private hear(payload: string): void {
    const part = parsePart(payload);
    if (part === null || part.sender === this.self) return;
    const text = (this.begun.get(part.sender) ?? '') + part.text;
    this.begun.delete(part.sender);
    if (!part.last) {
      // Somebody who never ends must not fill the memory.
      if (text.length <= 2 * MAX_PENDING_BYTES) this.begun.set(part.sender, text);
      return;
    }
    for (const message of messagesIn(text)) for (const listener of this.listeners) listener(message);
  }
}

function parsePart(payload: string): Part | null {
  const match = /^([0-9a-f-]{36}) \d+([.+])/.exec(payload);
  if (match === null) return null;
  return { sender: match[1] ?? '', last: match[2] === '.', text: payload.slice(match[0].length) };
}

/** None when the beginning was not heard. */
function messagesIn(text: string): string[] {
  if (!text.startsWith('[')) return [];
  try {
    return JSON.parse(text) as string[];
  } catch {
    return [];
  }
}
