import type { TrainingRow } from './training-row.ts';

/** Routed experts in the layout of a trainer. `data` holds the rows in C order, little-endian, as base64. */
export type ExpertArray = {
  readonly dtype: 'int16' | 'int32';
  /** [positions, layers, experts per token] */
  readonly shape: readonly [number, number, number];
  readonly data: string;
};

export type ExpertLayout = {
  readonly dtype: ExpertArray['dtype'];
  /** Whether the last position has a row of zeros: T rows instead of T - 1. The engine reports no experts for this position. */
  readonly lastRow: boolean;
  /**
   * Whether positions at the start that the engine left out have rows of zeros. When it is false and there are such positions, the result is
   * `null`.
   */
  readonly fillStart: boolean;
};

const READERS = {
  uint8: (data: Buffer) => data,
  uint16: (data: Buffer) => new Uint16Array(aligned(data)),
  int32: (data: Buffer) => new Int32Array(aligned(data)),
} as const;

/** Returns the experts of a row in a trainer's layout; `null` when the engine reported none, or not for all positions. */
export function expertArray(row: TrainingRow, { dtype, lastRow, fillStart }: ExpertLayout): ExpertArray | null {
  const experts = row.routedExperts;
  if (experts === null || (experts.start > 0 && !fillStart)) return null;
  const [, layers, perToken] = experts.shape;
  const positions = row.promptIds.length + row.responseIds.length - (lastRow ? 0 : 1);
  const length = positions * layers * perToken;
  const values = dtype === 'int16' ? new Int16Array(length) : new Int32Array(length);
  values.set(READERS[experts.dtype](Buffer.from(experts.data, 'base64')), experts.start * layers * perToken);
  const bytes = Buffer.from(values.buffer, values.byteOffset, values.byteLength);
  return { dtype, shape: [positions, layers, perToken], data: bytes.toString('base64') };
}

/** The experts of a row as the engine reported them: `values` has the positions from `start` to before `end`. */
export type ReportedExperts = {
  readonly start: number;
  readonly end: number;
  readonly layers: number;
  readonly perToken: number;
  readonly values: Uint8Array | Uint16Array | Int32Array;
};

/** Returns the experts of a row; `null` when the engine reported no experts. */
export function reportedExperts({ routedExperts: experts }: TrainingRow): ReportedExperts | null {
  if (experts === null) return null;
  const [positions, layers, perToken] = experts.shape;
  const values = READERS[experts.dtype](Buffer.from(experts.data, 'base64'));
  return { start: experts.start, end: experts.start + positions, layers, perToken, values };
}

/** Returns the experts of the positions from `start` to before `end` as int16. Positions without reported experts have the value `missing`. */
export function expertRows(experts: ReportedExperts, start: number, end: number, missing: number): ExpertArray {
  const { layers, perToken } = experts;
  const size = layers * perToken;
  const rows = new Int16Array((end - start) * size).fill(missing);
  const [from, to] = [Math.max(start, experts.start), Math.min(end, experts.end)];
  if (from < to)
    rows.set(
      experts.values.subarray((from - experts.start) * size, (to - experts.start) * size),
      (from - start) * size,
    );
  const data = Buffer.from(rows.buffer).toString('base64');
  return { dtype: 'int16', shape: [end - start, layers, perToken], data };
}

/** Returns a copy of the bytes in a buffer of their own. Its start is aligned for typed arrays. */
function aligned(data: Buffer): ArrayBuffer {
  return data.buffer.slice(data.byteOffset, data.byteOffset + data.length) as ArrayBuffer;
}
