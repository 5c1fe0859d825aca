import type { RolloutEvent } from '../schema/index.ts';
import type { EventBus } from './event-bus.ts';

/** Kept for clients that are behind, by all of them together: a burst such as the cancelling of a large task fits. */
const DEFAULT_LIMIT_BYTES = 16 * 1024 * 1024;

/**
 * The newest events as server-sent-event text, numbered from 0. Clients read from it at their own pace, so a client that is
 * slow, or stuck, costs no memory of its own.
 */
export class EventFeed {
  private readonly limitBytes: number;
  private texts: string[] = [];
  private firstNumber = 0;
  private bytes = 0;
  private readonly listeners = new Set<() => void>();

  constructor(bus: EventBus, limitBytes = DEFAULT_LIMIT_BYTES) {
    this.limitBytes = limitBytes;
    bus.subscribe((event) => this.append(event));
  }

  /** The number that the next event will have. */
  get end(): number {
    return this.firstNumber + this.texts.length;
  }

  /** The event of that number; null when it is no longer kept; undefined when it has not happened yet. */
  at(number: number): string | null | undefined {
    return number < this.firstNumber ? null : this.texts[number - this.firstNumber];
  }

  /** Calls `listener` after each event; returns the end of the subscription. */
  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  private append(event: RolloutEvent): void {
    const text = `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`;
    this.texts.push(text);
    this.bytes += text.length;
    if (this.bytes > this.limitBytes) this.forgetOldest();
    for (const listener of this.listeners) listener();
  }

  /** Half at a time: taking events off the front one by one would copy the rest each time. */
  private forgetOldest(): void {
    let count = 0;
    while (this.bytes > this.limitBytes / 2 && count < this.texts.length) {
      this.bytes -= this.texts[count]?.length ?? 0;
      count++;
    }
    this.texts = this.texts.slice(count);
    this.firstNumber += count;
  }
}
