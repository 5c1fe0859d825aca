type EventListener = Parameters<AbortSignal['addEventListener']>[1];
type Listener = { readonly callback: unknown; readonly run: () => void };

/**
 * An abort signal with the method that aborts it. It takes a tenth of the CPU time of an `AbortController` and its listeners, and every model
 * call needs several. It has the methods of an `AbortSignal` but is not an instance of it: pass it to floe's own functions, and not to `fetch`
 * or `AbortSignal.any`.
 */
export class LightAbort implements AbortSignal {
  aborted = false;
  reason: unknown = undefined;
  onabort: AbortSignal['onabort'] = null;
  private listeners: Listener[] = [];

  /** Aborts the signal and runs its listeners in the order in which they were added. Does nothing when the signal has already aborted. */
  abort(reason: unknown): void {
    if (this.aborted) return;
    this.aborted = true;
    this.reason = reason;
    if (this.onabort !== null) this.listeners.push({ callback: null, run: () => this.onabort?.(new Event('abort')) });
    // A listener may remove another listener that has not run yet.
    for (let next = this.listeners.shift(); next !== undefined; next = this.listeners.shift()) {
      try {
        next.run();
      } catch (error) {
        // As with every event target, an error of a listener is an uncaught exception and the other listeners still run.
        queueMicrotask(() => {
          throw error;
        });
      }
    }
  }

  throwIfAborted(): void {
    if (this.aborted) throw this.reason;
  }

  /** Runs `callback` once when the signal aborts. It must not have aborted yet. Returns a function that removes the listener. */
  onceAborted(callback: () => void): () => void {
    const listener = { callback, run: callback };
    this.listeners.push(listener);
    return () => this.remove(listener);
  }

  addEventListener(type: string, listener: EventListener | null): void {
    if (type !== 'abort' || listener === null || this.aborted) return;
    if (this.listeners.some(({ callback }) => callback === listener)) return;
    const run = (): void => {
      const event = new Event('abort');
      if (typeof listener === 'function') listener(event);
      else listener.handleEvent(event);
    };
    this.listeners.push({ callback: listener, run });
  }

  removeEventListener(type: string, listener: EventListener | null): void {
    if (type !== 'abort') return;
    const found = this.listeners.find(({ callback }) => callback === listener);
    if (found !== undefined) this.remove(found);
  }

  /** Runs no listener: only {@link abort} aborts the signal. */
  dispatchEvent(): boolean {
    return true;
  }

  private remove(listener: Listener): void {
    const { listeners } = this;
    const last = listeners.length - 1;
    // The listener that was added last is usually removed first.
    if (listeners[last] === listener) listeners.pop();
    else {
      const at = listeners.indexOf(listener);
      if (at >= 0) listeners.splice(at, 1);
    }
  }
}
