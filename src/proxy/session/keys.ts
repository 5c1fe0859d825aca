import { createHash } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import { FloeError } from '../../core/errors.ts';
import type { Target } from '../http/framing.ts';

/** Keys of ended attempts that are still answered 410 rather than 401: about 10 MB, days of sessions. */
const CLOSED_KEYS = 65_536;

/**
 * The one key that a request carries, wherever it carries it. Null without any.
 * Throws `bad_request` when two places disagree: guessing which one counts would let one session speak as another.
 */
export function keyOf(target: Target, headers: IncomingHttpHeaders): string | null {
  const candidates = [
    target.pathKey,
    bearerOf(headers.authorization),
    single(headers['x-api-key']),
    single(headers['x-goog-api-key']),
    target.queryKey,
  ];
  let key: string | null = null;
  for (const candidate of candidates) {
    if (candidate === null || candidate === '') continue;
    if (key !== null && key !== candidate) {
      throw new FloeError('bad_request', 'the request carries two different keys; send the session key everywhere');
    }
    key = candidate;
  }
  return key;
}

function bearerOf(authorization: string | undefined): string | null {
  const match = /^bearer +(.*)$/i.exec(authorization ?? '');
  return match?.[1]?.trim() ?? null;
}

function single(value: string | string[] | undefined): string | null {
  return (Array.isArray(value) ? value[0] : value) ?? null;
}

/**
 * Session keys by their SHA-256: the time of a look-up depends on the digest, of which a guesser controls nothing, and
 * the keys themselves are not kept.
 */
export class KeyRing<Holder> {
  private readonly open = new Map<string, Holder>();
  private readonly closed = new Set<string>();

  /** Throws `conflict` when the key is or was in use. */
  add(key: string, holder: Holder): void {
    const digest = digestOf(key);
    if (this.open.has(digest) || this.closed.has(digest)) {
      throw new FloeError('conflict', 'the session key is taken: every attempt needs a new one');
    }
    this.open.set(digest, holder);
  }

  /** Undoes {@link add} of a key that was never served. */
  forget(key: string): void {
    this.open.delete(digestOf(key));
  }

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

  /** Throws `unauthorized` without a known key, `session_closed` for one whose attempt has ended. */
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
  return createHash('sha256').update(key).digest('base64');
}
