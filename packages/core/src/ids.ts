import { randomBytes } from 'node:crypto';
import type { Clock } from './clock.ts';

const ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz';
/** Number of characters of an id that encode the time of its creation: 48 bits of milliseconds in base 32. */
const TIME_DIGITS = 10;
/** Number of random characters of an id. They have 80 bits, so that no two of 10^9 ids of the same millisecond are expected to be equal. */
const RANDOM_DIGITS = 16;

/** Creates an id such as `ses_01jd…`. Ids with the same prefix sort by the time of their creation. */
export function newId(prefix: string, clock: Clock): string {
  let rest = clock.nowMs();
  for (let i = TIME_DIGITS - 1; i >= 0; i--) {
    digits[i] = ALPHABET.charCodeAt(rest % 32);
    rest = Math.floor(rest / 32);
  }
  if (poolOffset + RANDOM_DIGITS > pool.length) {
    pool = randomBytes(POOL_BYTES);
    poolOffset = 0;
  }
  for (let i = 0; i < RANDOM_DIGITS; i++) {
    digits[TIME_DIGITS + i] = ALPHABET.charCodeAt((pool[poolOffset++] as number) % 32);
  }
  return `${prefix}_${digits.toString('latin1')}`;
}

/** The characters of the id that is being made. */
const digits = Buffer.alloc(TIME_DIGITS + RANDOM_DIGITS);

/**
 * Number of random bytes that are drawn at once and used for several ids. One draw takes 8 µs whatever its size, and every model call needs
 * an id.
 */
const POOL_BYTES = 256 * RANDOM_DIGITS;
let pool: Buffer = Buffer.alloc(0);
let poolOffset = 0;

/** Creates a session key of 256 random bits, as 43 URL-safe characters. */
export function newSessionKey(): string {
  return randomBytes(32).toString('base64url');
}

const DEFAULT_PORTS: Readonly<Record<string, string>> = { 'http:': '80', 'https:': '443' };

/**
 * Returns the default id of an engine: host, port and path of its URL. Every character that is not allowed in ids is replaced by a hyphen.
 */
export function engineIdOf(baseUrl: string): string {
  const url = new URL(baseUrl);
  return `${url.hostname}-${url.port || DEFAULT_PORTS[url.protocol]}${url.pathname}`
    .replace(/[^A-Za-z0-9._-]+/g, '-')
    .replace(/^[^A-Za-z0-9]+|-+$/g, '');
}
