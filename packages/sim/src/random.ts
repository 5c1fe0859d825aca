/**
 * Counter-based random numbers: every draw is a pure function of its key. A reply therefore depends only on its seed and token positions,
 * and not on other calls of the server.
 */

/** Mixes the bits of a 32-bit hash with the last step of MurmurHash3. */
function mix(hash: number): number {
  let h = hash;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

/** Returns a 32-bit hash of a text: FNV-1a over its UTF-16 code units, then mixed by `mix`. */
export function hashText(text: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  return mix(hash);
}

/** Returns a 32-bit hash of a list of 32-bit integers. */
export function hashNumbers(...values: readonly number[]): number {
  let hash = 0x9747b28c;
  for (const value of values) hash = mix((Math.imul(hash, 0x5bd1e995) ^ mix(value + 0x9e3779b9)) >>> 0);
  return hash;
}

/** Returns a number that is uniform in (0, 1) with 52 random bits, never exactly 0 or 1. */
export function uniform(...key: readonly number[]): number {
  const high = hashNumbers(0x51, ...key) >>> 6;
  const low = hashNumbers(0xa7, ...key) >>> 6;
  return (high * 2 ** 26 + low + 0.5) / 2 ** 52;
}
