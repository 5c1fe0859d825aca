import type { RoutedExperts } from '../reply.ts';
import type { Completion } from './completion.ts';

const BYTES: Record<RoutedExperts['dtype'], number> = { uint8: 1, uint16: 2, int32: 4 };

/**
 * Returns the size in bytes of one row of routed experts. A row has the experts that a mixture-of-experts model selected at one position.
 */
export function expertRowBytes({ dtype, shape }: Pick<RoutedExperts, 'dtype' | 'shape'>): number {
  return shape[1] * shape[2] * BYTES[dtype];
}

/** The place of one completion's tokens in a trace. */
export type ExpertsPiece = {
  readonly completion: Completion;
  /** Index of the first prompt id that the trace takes from this completion; 0 for the first completion of the trace. */
  readonly promptFrom: number;
  /** Position in the trace at which the completion's response begins, counted from the start of the trace's prompt. */
  readonly responseAt: number;
};

/**
 * Collects the rows of routed experts for the positions of a trace. The row of a position is copied from the completion that sampled the token
 * at this position, or from the first completion that has the token in its prompt. The row of a reply's last token comes from the prompt of
 * the next completion. The result begins where the first completion's rows begin, which may be after the start of the prompt. It ends before
 * the last position of the trace. Returns `null` when a row is missing or when the completions' rows differ in type or shape.
 */
export function assembleExperts(pieces: readonly ExpertsPiece[], positions: number): RoutedExperts | null {
  const first = pieces[0]?.completion;
  const experts = first?.routedExperts;
  if (first === undefined || experts === undefined || experts === null) return null;
  const { dtype, shape, start } = experts;
  // The row of the last prompt position is required, because the model chose the first sampled token with these experts.
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

/**
 * Copies the rows of one completion into `made`. `before` is the previous completion of the trace. Returns `false` when a row is missing or
 * has another type or shape.
 */
function copyRows(made: RoutedExperts, piece: ExpertsPiece, before: ExpertsPiece | undefined): boolean {
  const { completion, promptFrom, responseAt } = piece;
  const { promptIds, responseIds, routedExperts: own } = completion;
  if (own === null || own.dtype !== made.dtype) return false;
  if (own.shape[1] !== made.shape[1] || own.shape[2] !== made.shape[2]) return false;
  let from = own.start;
  if (before !== undefined) {
    from = promptFrom - 1;
    // The rows (routed experts of one token each) of the previous turn's last sampled token come from this completion's prompt. If the chat
    // template rendered another token at that place, no completion has the row of the sampled token.
    if (promptIds[from] !== before.completion.responseIds.at(-1)) return false;
  }
  // The last token of a reply has no row in its own completion, because no token was sampled after it.
  const to = promptIds.length + responseIds.length - 1;
  if (from < own.start || own.start + own.shape[0] < to) return false;
  const rowBytes = expertRowBytes(own);
  const at = responseAt - promptIds.length + from - made.start;
  own.data.copy(made.data, at * rowBytes, (from - own.start) * rowBytes, (to - own.start) * rowBytes);
  return true;
}
