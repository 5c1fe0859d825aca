import type { RoutedExperts } from '../core/reply.ts';
import type { Completion } from './completion.ts';

const BYTES: Record<RoutedExperts['dtype'], number> = { uint8: 1, uint16: 2, int32: 4 };

/** Size in bytes of the row of one position. */
export function expertRowBytes({ dtype, shape }: Pick<RoutedExperts, 'dtype' | 'shape'>): number {
  return shape[1] * shape[2] * BYTES[dtype];
}

/** The position of a completion in a trace. */
export type ExpertsPiece = {
  readonly completion: Completion;
  /** Index of the first of its prompt ids that the trace contains; 0 for the first completion of a trace. */
  readonly promptFrom: number;
  /** The position in the trace, counted over prompt and response, at which its response begins. */
  readonly responseAt: number;
};

/**
 * The rows of all positions of a trace except the last. Each row is copied from the completion in which the position's token was
 * sampled or first prompted; that of the last token of a reply comes from the next completion's prompt. The rows begin where those
 * of the first completion begin, which may be after the first prompt ids. `null` when a row is missing or the rows of the completions
 * differ in type or shape: no row is made up.
 */
export function assembleExperts(pieces: readonly ExpertsPiece[], positions: number): RoutedExperts | null {
  const first = pieces[0]?.completion;
  const experts = first?.routedExperts;
  if (first === undefined || experts === undefined || experts === null) return null;
  const { dtype, shape, start } = experts;
  // The first sampled token was chosen at the last position of the prompt.
  if (start >= first.promptIds.length) return null;
  const rows = positions - 1 - start;
  const rowBytes = expertRowBytes(experts);
  const only = pieces.length === 1 && shape[0] >= rows;
  const data = only ? experts.data.subarray(0, rows * rowBytes) : Buffer.allocUnsafe(rows * rowBytes);
  const made: RoutedExperts = { dtype, shape: [rows, shape[1], shape[2]], start, data };
  if (only) return made;
  for (const [index, piece] of pieces.entries()) if (!copyRows(made, piece, pieces[index - 1])) return null;
  return made;
}

/** Copies the rows of one completion; returns `false` when a row is missing. */
function copyRows(made: RoutedExperts, piece: ExpertsPiece, before: ExpertsPiece | undefined): boolean {
  const { completion, promptFrom, responseAt } = piece;
  const { promptIds, responseIds, routedExperts: own } = completion;
  if (own === null || own.dtype !== made.dtype) return false;
  if (own.shape[1] !== made.shape[1] || own.shape[2] !== made.shape[2]) return false;
  let from = own.start;
  if (before !== undefined) {
    from = promptFrom - 1;
    // When the turn was re-rendered with another last id, no completion has a row for the sampled last token.
    if (promptIds[from] !== before.completion.responseIds.at(-1)) return false;
  }
  // The last token has no row, because no token was sampled after it.
  const to = promptIds.length + responseIds.length - 1;
  if (from < own.start || own.start + own.shape[0] < to) return false;
  const rowBytes = expertRowBytes(own);
  const at = responseAt - promptIds.length + from - made.start;
  own.data.copy(made.data, at * rowBytes, (from - own.start) * rowBytes, (to - own.start) * rowBytes);
  return true;
}
