import { z } from 'zod';
import { countSchema } from './identifiers.ts';

/** Resources that a session has used, in the units for the cost of usable samples. */
export const sessionCostSchema = z.object({
  prompt_tokens: countSchema.describe(
    'tokens of the prompts of all calls, also of those that the engine had in its cache',
  ),
  sampled_tokens: countSchema,
  engine_ms: z.number().describe('sum of the times that the engines took'),
  sandbox_ms: z.number().nullable().describe('time from the lease to the result; null without a sandbox'),
  node_cpu_ms: z
    .number()
    .describe("part of the CPU time of the node's process; exact in sums over sessions, an estimate for one session"),
  stored_bytes: countSchema.describe('trajectory, records of completions and artifacts as they were delivered'),
});
export type SessionCost = z.infer<typeof sessionCostSchema>;
