/**
 * Which experts of a mixture-of-experts model tokens went through; see `routedExpertsSchema`. `data` has
 * rows * layers * experts numbers of `dtype`, little-endian, in C order.
 */
export type RoutedExperts = {
  readonly dtype: 'uint8' | 'uint16' | 'int32';
  readonly shape: readonly [rows: number, layers: number, experts: number];
  /** Position of the first row, counted over prompt and response. */
  readonly start: number;
  readonly data: Buffer;
};
