import type { RoutedExperts } from '../../core/reply.ts';
import { refusal } from '../record.ts';

/** Layers and experts per token of a model, which a server's replies do not tell. */
export type ExpertShape = { readonly layers: number; readonly experts: number };

const INT32_BYTES = 4;

/**
 * Reads the routed experts of a reply: the raw int32 of every position of prompt and response but the last, in base64.
 * Throws `engine_error` when they are not as many as that makes.
 */
export function readExperts(base64: string, shape: ExpertShape, positions: number): RoutedExperts {
  const data = Buffer.from(base64, 'base64');
  const { layers, experts } = shape;
  const rows = positions - 1;
  const expected = rows * layers * experts * INT32_BYTES;
  if (data.length !== expected) {
    throw refusal(
      `routed_experts has ${data.length} bytes, not ${expected} for ${rows} x ${layers} x ${experts} int32`,
    );
  }
  return { dtype: 'int32', shape: [rows, layers, experts], start: 0, data };
}

/**
 * Of a reply that went on after it was broken off: what was begun keeps the experts that it was sampled by, though later weights
 * have read it again. Null where either part has none.
 */
export function joinExperts(begun: RoutedExperts | null, whole: RoutedExperts | null): RoutedExperts | null {
  if (begun === null || whole === null) return null;
  const [begunRows, ...begunWidth] = begun.shape;
  const [rows, ...width] = whole.shape;
  const same = begun.dtype === whole.dtype && begunWidth.every((size, index) => size === width[index]);
  const end = begun.start + begunRows;
  if (!same || begun.start < whole.start || end > whole.start + rows) return null;
  const rowBytes = whole.data.length / Math.max(rows, 1);
  const data = Buffer.concat([begun.data, whole.data.subarray((end - whole.start) * rowBytes)]);
  const [layers, experts] = width as [number, number];
  return { dtype: whole.dtype, shape: [whole.start + rows - begun.start, layers, experts], start: begun.start, data };
}
