import { randomBytes } from 'node:crypto';
import type { Clock } from './clock.ts';

const ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz';
/** 48 bits of milliseconds in base 32. */
const TIME_DIGITS = 10;
/** 80 random bits: no collision to be expected among 10^9 ids of one millisecond. */
const RANDOM_DIGITS = 16;

/** A new id such as `ses_01jd…`: ids of one prefix sort by the time of their creation. */
export function newId(prefix: string, clock: Clock): string {
  let time = '';
  for (let rest = clock.nowMs(), i = 0; i < TIME_DIGITS; i++, rest = Math.floor(rest / 32)) {
    time = ALPHABET[rest % 32] + time;
  }
  let random = '';
  for (const byte of nextRandomBytes()) random += ALPHABET[byte % 32];
  return `${prefix}_${time}${random}`;
}

/** Random bytes are drawn in bulk: one draw costs 8 µs whatever its size, and every model call needs an id. */
const POOL_BYTES = 256 * RANDOM_DIGITS;
let pool: Buffer = Buffer.alloc(0);
let poolAt = 0;

function nextRandomBytes(): Buffer {
  if (poolAt + RANDOM_DIGITS > pool.length) {
    pool = randomBytes(POOL_BYTES);
    poolAt = 0;
  }
  poolAt += RANDOM_DIGITS;
  return pool.subarray(poolAt - RANDOM_DIGITS, poolAt);
}

/** A session key: 256 random bits, as 43 URL-safe characters. */
export function newSessionKey(): string {
  return randomBytes(32).toString('base64url');
}
