import { hash } from 'node:crypto';
import { FloeError } from '@floe-rl/core';

/**
 * Maximum number of session keys of ended attempts that are remembered. Requests with a remembered key are answered with HTTP 410 instead
 * of 401. This many keys take about 10 MB and cover days of sessions.
 */
const CLOSED_KEYS = 65_536;

/**
 * Finds the holder of a session key by the SHA-256 of the key. The keys themselves are not stored. The time of a lookup depends only on the
 * digest, so that response times do not help a client that guesses keys.
 */
export class KeyRing<Holder> {
  private readonly open = new Map<string, Holder>();
  private readonly closed = new Set<string>();

  /** Registers a key. Throws `conflict` when the key is in use or was used before. */
  add(key: string, holder: Holder): void {
    const digest = digestOf(key);
    if (this.open.has(digest) || this.closed.has(digest)) {
      throw new FloeError('conflict', 'the session key was used before: every attempt needs a new one');
    }
    this.open.set(digest, holder);
  }

  /** Removes a key that was added but has not been used by any request, so that it counts as unknown. */
  remove(key: string): void {
    this.open.delete(digestOf(key));
  }

  /** Closes a key, so that requests with it are refused from now on. Beyond {@link CLOSED_KEYS} closed keys, the oldest are forgotten. */
  close(key: string): void {
    const digest = digestOf(key);
    if (!this.open.delete(digest)) return;
    this.closed.add(digest);
    if (this.closed.size <= CLOSED_KEYS) return;
    for (const oldest of this.closed) {
      this.closed.delete(oldest);
      break;
    }
  }

  /**
   * Returns the holder of a key. Throws `unauthorized` for `null` and for an unknown key, and `session_closed` for a key whose attempt has
   * ended.
   */
  find(key: string | null): Holder {
    if (key === null) throw new FloeError('unauthorized', 'the request carries no session key');
    const digest = digestOf(key);
    const holder = this.open.get(digest);
    if (holder !== undefined) return holder;
    if (this.closed.has(digest)) throw new FloeError('session_closed', 'the session of this key has ended');
    throw new FloeError('unauthorized', 'the session key is not known');
  }
}

function digestOf(key: string): string {
  return hash('sha256', key, 'base64');
}
