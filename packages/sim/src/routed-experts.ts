import { hashNumbers } from './random.ts';

/**
 * Number of layers of the simulated mixture-of-experts model. With only one layer, swapping the axes of layers and experts would not change
 * the data.
 */
export const ROUTED_LAYERS = 2;
/** Number of experts that each token uses in a layer. With only one, swapping the axes of layers and experts would not change the data. */
export const ROUTED_TOP_K = 2;

/** Number of experts per layer. It is small enough to store an expert's index in one byte. */
const EXPERT_COUNT = 64;

/** Token ids of a prompt and its reply, as in a ledger entry. */
type Sequence = { readonly prompt_ids: readonly number[]; readonly response_ids: readonly number[] };

/**
 * Returns the two experts that the token at `position` uses in `layer`. They are a hash of the arguments, so that tests can recompute them.
 */
export function expertsOf(position: number, tokenId: number, layer: number): readonly [number, number] {
  const first = hashNumbers(position, tokenId, layer) % EXPERT_COUNT;
  const other = hashNumbers(position, tokenId, layer, 1) % (EXPERT_COUNT - 1);
  // The second expert is drawn from all experts except the first, so that the two differ.
  return [first, other < first ? other : other + 1];
}

/**
 * Returns the experts that the tokens of prompt and reply used, beginning with the token at position `start`. `values` is a flat list of
 * expert indexes, ordered by token, then by layer, then by the expert's rank within the layer. `rows` is the number of tokens in the list.
 * The last token is left out, because the engine has not used it as input.
 */
export function routedRows(sequence: Sequence, start: number): { readonly rows: number; readonly values: number[] } {
  const ids = [...sequence.prompt_ids, ...sequence.response_ids];
  const values: number[] = [];
  for (let position = start; position < ids.length - 1; position++) {
    for (let layer = 0; layer < ROUTED_LAYERS; layer++) {
      values.push(...expertsOf(position, ids[position] as number, layer));
    }
  }
  return { rows: Math.max(0, ids.length - 1 - start), values };
}

/**
 * Returns the experts of the tokens from position `start` on as base64 of an .npy file of dtype uint8 and shape (rows, layers, experts).
 */
export function routedNpy(sequence: Sequence, start: number): string {
  const { rows, values } = routedRows(sequence, start);
  return Buffer.concat([npyHeader([rows, ROUTED_LAYERS, ROUTED_TOP_K]), Uint8Array.from(values)]).toString('base64');
}

/**
 * Returns the experts of the tokens from position `start` on as base64 of the bytes without a file header, with their shape, first position
 * and dtype.
 */
export function routedObject(sequence: Sequence, start: number): object {
  const { rows, values } = routedRows(sequence, start);
  return {
    data: Buffer.from(Uint8Array.from(values)).toString('base64'),
    shape: [rows, ROUTED_LAYERS, ROUTED_TOP_K],
    start,
    dtype: 'uint8',
  };
}

/**
 * Returns the header of .npy format 1.0: magic bytes, length, and a Python dict padded so that the data begins at a multiple of 64 bytes.
 */
function npyHeader(shape: readonly number[]): Buffer {
  const dict = `{'descr': '|u1', 'fortran_order': False, 'shape': (${shape.join(', ')}), }`;
  const before = 10;
  const length = Math.ceil((before + dict.length + 1) / 64) * 64 - before;
  const header = Buffer.alloc(before + length, ' ');
  header.write('\x93NUMPY', 0, 'latin1');
  header[6] = 1;
  header[7] = 0;
  header.writeUInt16LE(length, 8);
  header.write(dict, before, 'latin1');
  header[before + length - 1] = 0x0a;
  return header;
}
