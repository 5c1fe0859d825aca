import type { IncomingMessage } from 'node:http';
import { FloeError } from '../../core/errors.ts';
import type { Counters } from '../status/counters.ts';

/** After this time some of what was arriving has arrived. */
const RETRY_AFTER_SECONDS = 1;

/** How many bytes of delivered results a server holds at once: after an outage all nodes deliver together. */
export class DeliveryBudget {
  private readonly maxBytes: number;
  private readonly counters: Counters;
  private held = 0;

  constructor(maxBytes: number, counters: Counters) {
    this.maxBytes = maxBytes;
    this.counters = counters;
  }

  /**
   * Takes what the head of a request says that its body has, and returns the end of that. One is let in always. Throws
   * `overloaded` when there are too many, and `bad_request` for a body of unknown length.
   */
  take({ headers }: IncomingMessage): () => void {
    if (headers['transfer-encoding'] !== undefined) {
      throw new FloeError('bad_request', 'a result comes with a content-length, not in chunks');
    }
    const bytes = Number(headers['content-length'] ?? 0);
    if (this.held > 0 && this.held + bytes > this.maxBytes) {
      this.counters.add('rate_limited');
      const message = `results of ${this.held} bytes are arriving, and this one of ${bytes} would be too much; repeat it`;
      throw new FloeError('overloaded', message, { retry_after_seconds: RETRY_AFTER_SECONDS });
    }
    this.held += bytes;
    return () => {
      this.held -= bytes;
    };
  }
}
