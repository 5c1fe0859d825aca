/**
 * Maximum number of ids that a plain loop compares. For longer ranges, a call of the native memory comparison is faster, despite its fixed
 * cost of about 100 ns and the two Buffers that it needs.
 */
const LOOP_IDS = 128;
const BYTES_PER_ID = 4;

/** Returns the memory of a typed array as a Buffer, without a copy. */
export function bytesOf(array: Int32Array | Float32Array | Uint8Array): Buffer {
  return Buffer.from(array.buffer, array.byteOffset, array.byteLength);
}

/** Whether the `count` ids from `a[aFrom]` on equal those from `b[bFrom]` on; `false` when either array is too short. */
export function sameIds(a: Int32Array, aFrom: number, b: Int32Array, bFrom: number, count: number): boolean {
  if (aFrom + count > a.length || bFrom + count > b.length) return false;
  if (sameMemory(a, aFrom, b, bFrom)) return true;
  if (count <= LOOP_IDS) {
    for (let i = 0; i < count; i++) if (a[aFrom + i] !== b[bFrom + i]) return false;
    return true;
  }
  return sameBytes(bytesOf(a), aFrom, bytesOf(b), bFrom, count);
}

/**
 * Whether two positions have the same memory address. The ids after them are then equal and need no comparison. This is a common case,
 * because the prompts of an agent thread are views of one buffer. Without this check, comparing each turn's prompt with the previous one
 * would read the whole history every time.
 */
function sameMemory(a: Int32Array, aFrom: number, b: Int32Array, bFrom: number): boolean {
  return a.byteOffset + aFrom * BYTES_PER_ID === b.byteOffset + bFrom * BYTES_PER_ID && a.buffer === b.buffer;
}

function sameBytes(a: Buffer, aFrom: number, b: Buffer, bFrom: number, count: number): boolean {
  const aByte = aFrom * BYTES_PER_ID;
  const bByte = bFrom * BYTES_PER_ID;
  const bytes = count * BYTES_PER_ID;
  return a.compare(b, bByte, bByte + bytes, aByte, aByte + bytes) === 0;
}

/** Returns how many leading ids of `a[aFrom..aTo)` and `b[bFrom..bTo)` are equal. */
export function sharedLength(
  a: Int32Array,
  aFrom: number,
  aTo: number,
  b: Int32Array,
  bFrom: number,
  bTo: number,
): number {
  const length = Math.min(aTo - aFrom, bTo - bFrom);
  if (length > 0 && sameMemory(a, aFrom, b, bFrom)) return length;
  const near = Math.min(length, LOOP_IDS);
  let low = 0;
  while (low < near && a[aFrom + low] === b[bFrom + low]) low++;
  if (low < near || low >= length) return Math.max(low, 0);
  const aBytes = bytesOf(a);
  const bBytes = bytesOf(b);
  if (sameBytes(aBytes, aFrom + low, bBytes, bFrom + low, length - low)) return length;
  // Native memory comparison does not return the position of the first difference. The range is therefore halved until a loop over the rest
  // is faster.
  let high = length;
  while (high - low > LOOP_IDS) {
    const middle = (low + high) >>> 1;
    if (sameBytes(aBytes, aFrom + low, bBytes, bFrom + low, middle - low)) low = middle;
    else high = middle;
  }
  while (low < high && a[aFrom + low] === b[bFrom + low]) low++;
  return low;
}
