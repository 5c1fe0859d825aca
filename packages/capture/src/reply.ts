/**
 * A piece of a model's reply. Pieces arrive in the order in which the policy writes them: first thinking, then text, then tool calls by
 * ascending `index`. A call begins with its id and name; any number of pieces of its argument text follow before the next call begins.
 */
export type ReplyDelta =
  | { readonly kind: 'reasoning'; readonly text: string }
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'call'; readonly index: number; readonly id: string; readonly name: string }
  | { readonly kind: 'arguments'; readonly index: number; readonly text: string };

/**
 * The experts of a mixture-of-experts model to which each token was routed; see `routedExpertsSchema`. `data` holds rows * layers *
 * experts numbers of type `dtype`, little-endian, in C order.
 */
export type RoutedExperts = {
  readonly dtype: 'uint8' | 'uint16' | 'int32';
  readonly shape: readonly [rows: number, layers: number, experts: number];
  /** Token position of the first row of `data`, counted over prompt and response. */
  readonly start: number;
  readonly data: Buffer;
};
