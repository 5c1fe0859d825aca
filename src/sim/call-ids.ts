import { randomUUID } from 'node:crypto';

/** Sessions whose latest ids are kept; more than any test runs at once. */
const MAX_SESSIONS = 1_000;

/** Makes tool-call ids, and remembers those of each session's latest reply, for the fault that repeats them. */
export class CallIds {
  private readonly latest = new Map<string | null, readonly string[]>();

  /** The ids of one reply, by index, each beginning with `prefix`. With `repeat`, those of the session's latest reply come first. */
  forReply(sessionId: string | null, repeat: boolean, prefix = 'chatcmpl-tool-'): (index: number) => string {
    const earlier = repeat ? (this.latest.get(sessionId) ?? []) : [];
    const ids: string[] = [];
    return (index) => {
      const id = earlier[index] ?? `${prefix}${randomUUID().replaceAll('-', '')}`;
      ids[index] = id;
      this.remember(sessionId, ids);
      return id;
    };
  }

  private remember(sessionId: string | null, ids: readonly string[]): void {
    this.latest.delete(sessionId);
    this.latest.set(sessionId, ids);
    for (const oldest of this.latest.keys()) {
      if (this.latest.size <= MAX_SESSIONS) break;
      this.latest.delete(oldest);
    }
  }
}
