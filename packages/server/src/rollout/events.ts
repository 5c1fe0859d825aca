import { MIB } from '@floe-rl/core';
import type { RolloutEvent } from '@floe-rl/core/schema';

/** Passes the events of committed transactions to listeners, in the order of the commits. A listener must not throw. */
export class EventBus {
  private readonly listeners = new Set<(event: RolloutEvent) => void>();

  /** Calls `listener` with every later event. Returns a function that ends the subscription. */
  subscribe(listener: (event: RolloutEvent) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  publish(event: RolloutEvent): void {
    for (const listener of this.listeners) listener(event);
  }
}

/**
 * Maximum number of bytes of event text kept in memory for clients that read slowly; all clients share this one buffer. A burst of events,
 * such as the cancellation of a large task, is smaller.
 */
const DEFAULT_LIMIT_BYTES = 16 * MIB;

/**
 * Keeps the newest events as server-sent-event text, numbered from 0. Every client reads from this one buffer at its own pace, so a slow
 * or stuck client costs no additional memory.
 */
export class EventFeed {
  private readonly limitBytes: number;
  private texts: string[] = [];
  private firstNumber = 0;
  private bytes = 0;
  private readonly listeners = new Set<() => void>();

  constructor(limitBytes = DEFAULT_LIMIT_BYTES) {
    this.limitBytes = limitBytes;
  }

  /** Whether any client reads the feed at present. */
  get isFollowed(): boolean {
    return this.listeners.size > 0;
  }

  /** The number that the next event will get. */
  get end(): number {
    return this.firstNumber + this.texts.length;
  }

  /**
   * Returns the text of the event with the given number; `null` when the buffer no longer contains the event, `undefined` when the event
   * has not happened yet.
   */
  at(number: number): string | null | undefined {
    return number < this.firstNumber ? null : this.texts[number - this.firstNumber];
  }

  /** Calls `listener` after each event that is added from now on. Returns a function that ends the subscription. */
  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Adds one event as the text that clients receive. */
  append(text: string): void {
    this.texts.push(text);
    this.bytes += text.length;
    if (this.bytes > this.limitBytes) this.dropOldest();
    for (const listener of this.listeners) listener();
  }

  /** Drops the older half of the buffer in one step, because dropping single events would copy the rest of the array each time. */
  private dropOldest(): void {
    let count = 0;
    while (this.bytes > this.limitBytes / 2 && count < this.texts.length) {
      this.bytes -= this.texts[count]?.length ?? 0;
      count++;
    }
    this.texts = this.texts.slice(count);
    this.firstNumber += count;
  }
}

/** Returns a feed of all events, each with its type as the event name. */
export function eventFeed(bus: EventBus, limitBytes = DEFAULT_LIMIT_BYTES): EventFeed {
  const feed = new EventFeed(limitBytes);
  bus.subscribe((event) => feed.append(`event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`));
  return feed;
}
