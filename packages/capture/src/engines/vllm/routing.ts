import { z } from 'zod';
import type { RoutedExperts } from '../../reply.ts';
import { invalidReply } from '../chat/reply-tokens.ts';

const FIELD = 'routed_experts';

/** First bytes of every .npy file, numpy's format of arrays. One byte each for the major and the minor version follow. */
const MAGIC = Buffer.from('\x93NUMPY', 'latin1');

/** Length in bytes of the start of a .npy file: the magic bytes and the two bytes of the version. */
const PREAMBLE_BYTES = 8;

/** The .npy version that stores the length of its header in two bytes. Later versions use four bytes. */
const FIRST_NPY_VERSION = 1;

const ITEM_BYTES = { uint8: 1, uint16: 2, int32: 4 } as const;
type Dtype = RoutedExperts['dtype'];

/** numpy's names of the little-endian types that engines use, and the names that floe uses for them. */
const NPY_DTYPES: Readonly<Record<string, Dtype>> = { '|u1': 'uint8', '<u1': 'uint8', '<u2': 'uint16', '<i4': 'int32' };

/** Schema of routed experts in a reply: either a complete .npy file in base64, or the rows in base64 with their shape and type. */
export const foreignRoutingSchema = z
  .union([
    z.string(),
    z.looseObject({
      data: z.string(),
      shape: z.array(z.int().min(0)),
      dtype: z.string(),
      start: z.int().min(0).nullish(),
    }),
  ])
  .nullish();

/**
 * Parses the routed experts of a reply. `tokens` is the number of token ids of the reply and its prompt. Returns `null` when the engine did
 * not report experts. There must be one row for each id except the last: the model has not processed the last id. Throws `engine_error` for
 * another number of rows or an unknown data type.
 */
export function routedExpertsOf(foreign: z.output<typeof foreignRoutingSchema>, tokens: number): RoutedExperts | null {
  if (foreign === null || foreign === undefined) return null;
  const experts = typeof foreign === 'string' ? parseNpy(bytesOf(foreign)) : parseObject(foreign);
  const [rows, layers, perToken] = experts.shape;
  const expected = tokens - 1 - experts.start;
  if (rows !== expected) {
    throw invalidReply(`${FIELD} has ${rows} rows from position ${experts.start} on, not ${expected}`);
  }
  const bytes = rows * layers * perToken * ITEM_BYTES[experts.dtype];
  if (experts.data.length !== bytes)
    throw invalidReply(`${FIELD} has ${experts.data.length} bytes, its shape ${bytes}`);
  return experts;
}

function bytesOf(base64: string): Buffer {
  const bytes = Buffer.from(base64, 'base64');
  // Node ignores characters that are not base64, so any text decodes to some bytes. Comparing the lengths detects text that is not base64.
  if (Math.ceil((bytes.length * 4) / 3) !== base64.replace(/=+$/, '').length)
    throw invalidReply(`${FIELD} is not base64`);
  return bytes;
}

function parseObject(foreign: { data: string; shape: number[]; dtype: string; start?: number | null }): RoutedExperts {
  const dtype = NPY_DTYPES[foreign.dtype] ?? (foreign.dtype in ITEM_BYTES ? (foreign.dtype as Dtype) : null);
  if (dtype === null) throw invalidReply(`${FIELD}.dtype is ${foreign.dtype}`);
  return { dtype, shape: shapeOf(foreign.shape), start: foreign.start ?? 0, data: bytesOf(foreign.data) };
}

function parseNpy(bytes: Buffer): RoutedExperts {
  const major = bytes[MAGIC.length];
  const lengthBytes = major === FIRST_NPY_VERSION ? 2 : 4;
  if (!bytes.subarray(0, MAGIC.length).equals(MAGIC) || bytes.length < PREAMBLE_BYTES + lengthBytes) {
    throw invalidReply(`${FIELD} is not a .npy file`);
  }
  const begin = PREAMBLE_BYTES + lengthBytes;
  const end = begin + bytes.readUIntLE(PREAMBLE_BYTES, lengthBytes);
  if (end > bytes.length) throw invalidReply(`${FIELD} ends within its header`);
  const header = bytes.toString('latin1', begin, end);
  const descr = /'descr':\s*'([^']*)'/.exec(header)?.[1] ?? '';
  const dtype = NPY_DTYPES[descr];
  if (dtype === undefined) throw invalidReply(`${FIELD} is of type ${JSON.stringify(descr)}`);
  if (!/'fortran_order':\s*False/.test(header)) throw invalidReply(`${FIELD} is not in C order`);
  const shape = /'shape':\s*\(([\d,\s]*)\)/.exec(header)?.[1] ?? '';
  const sizes = shape.split(',').flatMap((size) => (size.trim() === '' ? [] : [Number(size)]));
  // `data` is a view of the decoded bytes, which do not keep the reply's text in memory.
  return { dtype, shape: shapeOf(sizes), start: 0, data: bytes.subarray(end) };
}

function shapeOf(sizes: readonly number[]): RoutedExperts['shape'] {
  const [rows, layers, experts] = sizes;
  if (rows === undefined || layers === undefined || experts === undefined || sizes.length !== 3) {
    throw invalidReply(`${FIELD} has the shape [${sizes.join(', ')}], not [rows, layers, experts]`);
  }
  return [rows, layers, experts];
}

/**
 * Joins the routed experts of a resumed reply. The result has the rows of the later call. When these start after position 0, rows of the first
 * part are put before them. Returns `null` when rows are missing between the two parts or their shapes differ.
 */
export function joinedRouting(first: RoutedExperts | null, later: RoutedExperts | null): RoutedExperts | null {
  if (later === null || later.start === 0 || first === null || later.start <= first.start) return later;
  const [, layers, perToken] = later.shape;
  const rowBytes = layers * perToken * ITEM_BYTES[later.dtype];
  const alike = first.dtype === later.dtype && first.shape[1] === layers && first.shape[2] === perToken;
  const rows = later.start - first.start;
  if (!alike || rows > first.shape[0]) return null;
  return {
    dtype: later.dtype,
    shape: [rows + later.shape[0], layers, perToken],
    start: first.start,
    data: Buffer.concat([first.data.subarray(0, rows * rowBytes), later.data]),
  };
}
