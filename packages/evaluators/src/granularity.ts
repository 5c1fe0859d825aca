import { z } from 'zod';

/** How a reward is computed from the results of tests. */
export const granularitySchema = z
  .enum(['binary', 'pass_rate'])
  .default('binary')
  .describe('binary: 1 when every test passed, else 0; pass_rate: the share of the tests that passed');

export function rewardOfTests(
  granularity: z.output<typeof granularitySchema>,
  { passed, total }: { readonly passed: number; readonly total: number },
): number {
  if (granularity === 'pass_rate') return passed / total;
  return passed === total ? 1 : 0;
}
