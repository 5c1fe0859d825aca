import { z } from 'zod';
import type { RoutedExperts } from '../../core/reply.ts';
import { refusal } from '../record.ts';

const FIELD = 'routed_experts';

/** What every .npy file begins with; then a byte each of major and minor version. */
const MAGIC = Buffer.from('\x93NUMPY', 'latin1');

/** Bytes of the magic and the version. */
const PREAMBLE_BYTES = 8;

/** The first version counts its header's length in two bytes, later ones in four. */
const FIRST_VERSION = 1;

const ITEM_BYTES = { uint8: 1, uint16: 2, int32: 4 } as const;
type Dtype = RoutedExperts['dtype'];

/** numpy's names of the types that engines use, little-endian. */
const NPY_DTYPES: Readonly<Record<string, Dtype>> = { '|u1': 'uint8', '<u1': 'uint8', '<u2': 'uint16', '<i4': 'int32' };

/** A whole .npy file in base64, or the rows in base64 with what they are. */
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
 * The routed experts of a reply of `tokens` ids, its prompt included. Null: the engine did not tell. Throws `engine_error` for
 * another type, and for rows that are not one for each id but the last, which nothing was sampled after.
 */
export function routedExpertsOf(foreign: z.output<typeof foreignRoutingSchema>, tokens: number): RoutedExperts | null {
  if (foreign === null || foreign === undefined) return null;
  const experts = typeof foreign === 'string' ? parseNpy(bytesOf(foreign)) : parseObject(foreign);
  const [rows, layers, perToken] = experts.shape;
  const wanted = tokens - 1 - experts.start;
  if (rows !== wanted) throw refusal(`${FIELD} has ${rows} rows from position ${experts.start} on, not ${wanted}`);
  const bytes = rows * layers * perToken * ITEM_BYTES[experts.dtype];
  if (experts.data.length !== bytes) throw refusal(`${FIELD} has ${experts.data.length} bytes, its shape ${bytes}`);
  return experts;
}

function bytesOf(base64: string): Buffer {
  const bytes = Buffer.from(base64, 'base64');
  // Node passes over what is no base64, so that a text of anything would come out as some bytes.
  if (Math.ceil((bytes.length * 4) / 3) !== base64.replace(/=+$/, '').length) throw refusal(`${FIELD} is no base64`);
  return bytes;
}

function parseObject(foreign: { data: string; shape: number[]; dtype: string; start?: number | null }): RoutedExperts {
  const dtype = NPY_DTYPES[foreign.dtype] ?? (foreign.dtype in ITEM_BYTES ? (foreign.dtype as Dtype) : null);
  if (dtype === null) throw refusal(`${FIELD}.dtype is ${foreign.dtype}`);
  return { dtype, shape: shapeOf(foreign.shape), start: foreign.start ?? 0, data: bytesOf(foreign.data) };
}

function parseNpy(bytes: Buffer): RoutedExperts {
  const major = bytes[MAGIC.length];
  const lengthBytes = major === FIRST_VERSION ? 2 : 4;
  if (!bytes.subarray(0, MAGIC.length).equals(MAGIC) || bytes.length < PREAMBLE_BYTES + lengthBytes) {
    throw refusal(`${FIELD} is no .npy file`);
  }
  const begin = PREAMBLE_BYTES + lengthBytes;
  const end = begin + bytes.readUIntLE(PREAMBLE_BYTES, lengthBytes);
  if (end > bytes.length) throw refusal(`${FIELD} ends within its header`);
  const header = bytes.toString('latin1', begin, end);
  const descr = /'descr':\s*'([^']*)'/.exec(header)?.[1] ?? '';
  const dtype = NPY_DTYPES[descr];
  if (dtype === undefined) throw refusal(`${FIELD} is of type ${JSON.stringify(descr)}`);
  if (!/'fortran_order':\s*False/.test(header)) throw refusal(`${FIELD} is not in C order`);
  const shape = /'shape':\s*\(([\d,\s]*)\)/.exec(header)?.[1] ?? '';
  const sizes = shape.split(',').flatMap((size) => (size.trim() === '' ? [] : [Number(size)]));
  // A view: the reply's text that it came from is not kept with it.
  return { dtype, shape: shapeOf(sizes), start: 0, data: bytes.subarray(end) };
}

function shapeOf(sizes: readonly number[]): RoutedExperts['shape'] {
  const [rows, layers, experts] = sizes;
  if (rows === undefined || layers === undefined || experts === undefined || sizes.length !== 3) {
    throw refusal(`${FIELD} has the shape [${sizes.join(', ')}], not [rows, layers, experts]`);
  }
  return [rows, layers, experts];
}

/**
 * The experts of a reply that was begun, broken off and continued: what the later call tells, with rows of the earlier one in
 * front where it begins later. Null where that leaves a gap.
 */
export function joinedRouting(begun: RoutedExperts | null, later: RoutedExperts | null): RoutedExperts | null {
  if (later === null || later.start === 0 || begun === null || later.start <= begun.start) return later;
  const [, layers, perToken] = later.shape;
  const rowBytes = layers * perToken * ITEM_BYTES[later.dtype];
  const alike = begun.dtype === later.dtype && begun.shape[1] === layers && begun.shape[2] === perToken;
  const rows = later.start - begun.start;
  if (!alike || rows > begun.shape[0]) return null;
  return {
    dtype: later.dtype,
    shape: [rows + later.shape[0], layers, perToken],
    start: begun.start,
    data: Buffer.concat([begun.data.subarray(0, rows * rowBytes), later.data]),
  };
}
