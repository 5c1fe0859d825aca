import { hashNumbers } from './random.ts';

/** Layers and experts per token of the simulated mixture-of-experts model: the least that shows a mixed-up axis. */
export const ROUTED_LAYERS = 2;
export const ROUTED_TOP_K = 2;

/** Experts per layer; their numbers fit in a byte. */
const EXPERTS = 64;

/** A sequence as the ledger holds it. */
type Sequence = { readonly prompt_ids: readonly number[]; readonly response_ids: readonly number[] };

/** The experts that the token at `position` of prompt and reply went through in `layer`: a hash, so that anyone can check. */
export function expertsOf(position: number, tokenId: number, layer: number): readonly [number, number] {
  const first = hashNumbers(position, tokenId, layer) % EXPERTS;
  const other = hashNumbers(position, tokenId, layer, 1) % (EXPERTS - 1);
  // The second is never the first: it is chosen among the others.
  return [first, other < first ? other : other + 1];
}

/**
 * Experts of prompt and reply from `start` on, row by row: token, layer, rank. One row less than there are tokens, since
 * the last one sampled was never computed with.
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

/** As base64 of an .npy file of dtype uint8 and shape (rows, layers, experts). */
export function routedNpy(sequence: Sequence, start: number): string {
  const { rows, values } = routedRows(sequence, start);
  return Buffer.concat([npyHeader([rows, ROUTED_LAYERS, ROUTED_TOP_K]), Uint8Array.from(values)]).toString('base64');
}

/** As base64 of the bare numbers, with what is needed to read them. */
export function routedObject(sequence: Sequence, start: number): object {
  const { rows, values } = routedRows(sequence, start);
  return {
    data: Buffer.from(Uint8Array.from(values)).toString('base64'),
    shape: [rows, ROUTED_LAYERS, ROUTED_TOP_K],
    start,
    dtype: 'uint8',
  };
}

/** The header of version 1.0 of the format: magic, length, a Python dict padded so that data begins at a multiple of 64. */
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
