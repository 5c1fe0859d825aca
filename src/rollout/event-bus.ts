import type { RolloutEvent } from '../schema/index.ts';

/** Tells listeners what has been committed, in order. A listener must not throw. */
export class EventBus {
  private readonly listeners = new Set<(event: RolloutEvent) => void>();

  /** Returns the end of the subscription. */
  subscribe(listener: (event: RolloutEvent) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  publish(event: RolloutEvent): void {
    for (const listener of this.listeners) listener(event);
  }
}
