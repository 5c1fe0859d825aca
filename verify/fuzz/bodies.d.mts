import type { Arbitrary } from 'fast-check';

export function strangeBody(dialectName: string): Arbitrary<unknown>;
