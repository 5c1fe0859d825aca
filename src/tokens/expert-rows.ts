import type { RoutedExperts } from '../core/reply.ts';
import type { Completion } from './completion.ts';

const BYTES: Record<RoutedExperts['dtype'], number> = { uint8: 1, uint16: 2, int32: 4 };

/** Bytes of the row of one position. */
export function expertRowBytes({ dtype, shape }: Pick<RoutedExperts, 'dtype' | 'shape'>): number {
  return shape[1] * shape[2] * BYTES[dtype];
}

/** Where a completion stands in a trace. */
export type ExpertsPiece = {
  readonly completion: Completion;
  /** Its prompt ids from here on stand in the trace; for the first of a trace all of them. */
  readonly promptFrom: number;
  /** The position in the trace, prompt included, at which its response begins. */
  readonly responseAt: number;
};

/**
 * The rows of all positions of a trace but the last, each out of the completion that the position's token was sampled or first
 * prompted in; the last token of a reply out of the next completion's prompt. They begin where the first completion's begin, which
 * may be behind the first prompt ids. Null when a row is missing or the completions' rows are not of one kind: nothing is filled in.
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
  for (const [place, piece] of pieces.entries()) if (!copyRows(made, piece, pieces[place - 1])) return null;
  return made;
}

/** False when a row is missing. */
function copyRows(made: RoutedExperts, piece: ExpertsPiece, before: ExpertsPiece | undefined): boolean {
  const { completion, promptFrom, responseAt } = piece;
  const { promptIds, responseIds, routedExperts: own } = completion;
  if (own === null || own.dtype !== made.dtype) return false;
  if (own.shape[1] !== made.shape[1] || own.shape[2] !== made.shape[2]) return false;
  let from = own.start;
  if (before !== undefined) {
    from = promptFrom - 1;
    // The reply before ends in a token of its own here, where the turn was rendered otherwise: no row is that token's.
    if (promptIds[from] !== before.completion.responseIds.at(-1)) return false;
  }
  // Nothing was sampled after the last token.
  const to = promptIds.length + responseIds.length - 1;
  if (from < own.start || own.start + own.shape[0] < to) return false;
  const rowBytes = expertRowBytes(own);
  const at = responseAt - promptIds.length + from - made.start;
  own.data.copy(made.data, at * rowBytes, (from - own.start) * rowBytes, (to - own.start) * rowBytes);
  return true;
}
