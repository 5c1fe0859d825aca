import { randomUUID } from 'node:crypto';
import { type Clock, MIB } from '@floe-rl/core';
import pg from 'pg';
import { BoundedClient } from './connection.ts';

const CHANNEL = 'floe';

/**
 * Time in milliseconds during which messages are collected to be sent together. Every notification takes a lock that is global to the
 * database server, so fewer notifications are better.
 */
const COALESCE_MS = 5;

/**
 * Maximum number of bytes of text in one notification. PostgreSQL accepts payloads below 8000 bytes, and each payload also contains the
 * sender and a number.
 */
const PART_BYTES = 7_900;

/**
 * Maximum number of bytes of messages that wait to be sent. Further messages are dropped, because the receiving servers also poll for
 * changes.
 */
const MAX_PENDING_BYTES = MIB;

const FIRST_RECONNECT_MS = 100;
const MAX_RECONNECT_MS = 2_000;

type Part = { readonly sender: string; readonly last: boolean; readonly text: string };

/**
 * Sends messages between the servers of one database, with LISTEN and NOTIFY on a separate connection. Messages are lost while this
 * connection is down.
 */
export class Announcements {
  private readonly config: pg.ClientConfig;
  private readonly clock: Clock;
  private readonly ownId = randomUUID();
  private readonly listeners = new Set<(message: string) => void>();
  private pending: string[] = [];
  private pendingBytes = 0;
  private partCount = 0;
  private sending = false;
  /**
   * Text of messages that were split into several notifications, as far as it was received, by sender. The entry is removed with the last
   * part.
   */
  private readonly incomplete = new Map<string, string>();
  private client: { readonly raw: pg.Client; readonly bounded: BoundedClient } | null = null;
  private cancelTimer: () => void = () => {};
  private reconnectMs = FIRST_RECONNECT_MS;
  private connecting: Promise<void> = Promise.resolve();
  private closed = false;

  constructor(config: pg.ClientConfig, clock: Clock) {
    this.config = config;
    this.clock = clock;
  }

  /**
   * Connects to the database. Resolves after the first attempt, even if it failed. Later, a broken connection is replaced in the
   * background.
   */
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
    // Each listener is wrapped in a new function, so that a function that is registered twice is called twice and removed one registration
    // at a time.
    const wrapped = (message: string): void => listener(message);
    this.listeners.add(wrapped);
    return () => this.listeners.delete(wrapped);
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
    raw.on('notification', ({ payload }) => this.receive(payload ?? ''));
    raw.on('end', () => this.onDisconnect(client));
    try {
      await raw.connect();
      // Notifications need not be synced to disk: when one is lost, the other servers only learn of the change later, by polling.
      await client.bounded.run('set synchronous_commit = off');
      await client.bounded.run(`listen ${CHANNEL}`);
    } catch {
      raw.connection.stream.destroy();
      this.connectLater();
      return;
    }
    this.reconnectMs = FIRST_RECONNECT_MS;
    this.client = client;
    if (raw.connection.stream.destroyed) this.onDisconnect(client);
  }

  private onDisconnect(client: object): void {
    if (this.client !== client) return;
    this.client = null;
    this.incomplete.clear();
    this.dropPending();
    this.connectLater();
  }

  private connectLater(): void {
    if (this.closed) return;
    this.cancelTimer = this.clock.schedule(this.reconnectMs, () => {
      this.connecting = this.connect();
    });
    this.reconnectMs = Math.min(MAX_RECONNECT_MS, this.reconnectMs * 2);
  }

  private dropPending(): void {
    this.pending = [];
    this.pendingBytes = 0;
  }

  private async send(): Promise<void> {
    const client = this.client;
    if (client === null || this.pending.length === 0) return;
    const parts = this.partsOf(this.pending);
    this.dropPending();
    this.sending = true;
    try {
      await client.bounded.run('select pg_notify($1, part) from unnest($2::text[]) as part', [CHANNEL, parts]);
    } catch {
      // Sending fails when the connection is broken, which `onDisconnect` handles, or when the notification queue of the database server is
      // full.
      this.dropPending();
    } finally {
      this.sending = false;
    }
    if (this.pending.length > 0) this.cancelTimer = this.clock.schedule(COALESCE_MS, () => void this.send());
  }

  /**
   * Splits messages into notifications of the form `<sender> <number><mark><text>`. The mark is `.` in the last part and `+` in the parts
   * before it. The number makes equal texts distinct, because PostgreSQL drops duplicate notifications of one transaction.
   */
  private partsOf(messages: readonly string[]): string[] {
    // The text is converted to ASCII, so that its length in characters is its size in bytes and it can be split at any character.
    const text = JSON.stringify(messages).replace(
      /[\u007f-\uffff]/g,
      (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
    );
    const parts: string[] = [];
    for (let at = 0; at < text.length; at += PART_BYTES) {
      const last = at + PART_BYTES >= text.length;
      parts.push(`${this.ownId} ${this.partCount++}${last ? '.' : '+'}${text.slice(at, at + PART_BYTES)}`);
    }
    return parts;
  }

  private receive(payload: string): void {
    const part = parsePart(payload);
    if (part === null || part.sender === this.ownId) return;
    const text = (this.incomplete.get(part.sender) ?? '') + part.text;
    this.incomplete.delete(part.sender);
    if (!part.last) {
      // A text longer than twice the maximum of pending bytes is dropped, because a sender that never sends the last part must not fill the
      // memory.
      if (text.length <= 2 * MAX_PENDING_BYTES) this.incomplete.set(part.sender, text);
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

/**
 * Parses a text into its messages, after the text was assembled from all its parts. Returns an empty list when the beginning of the text
 * was lost.
 */
function messagesIn(text: string): string[] {
  if (!text.startsWith('[')) return [];
  try {
    return JSON.parse(text) as string[];
  } catch {
    return [];
  }
}
