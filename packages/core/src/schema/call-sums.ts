import { z } from 'zod';
import { dialectNameSchema } from './chat.ts';
import { renderReasonSchema } from './completion.ts';
import { engineKindNameSchema } from './engine.ts';
import { countSchema } from './identifiers.ts';

/** Number of intervals of times between a duration and twice this duration. A quantile computed from the intervals is exact to about 9 %. */
const INTERVALS_PER_DOUBLING = 4;
/** Number of the last interval, which has all longer times: about 12 days. */
const MAX_TIME_INTERVAL = 120;

/** Returns the number of the interval that has a duration. Interval 0 has all durations up to 1 ms. */
export function timeIntervalOf(ms: number): number {
  const interval = Math.ceil(INTERVALS_PER_DOUBLING * Math.log2(Math.max(1, ms)));
  return Math.min(interval, MAX_TIME_INTERVAL);
}

/** Returns the geometric middle of an interval of {@link timeIntervalOf} in milliseconds. */
export function middleOfTimeInterval(interval: number): number {
  return 2 ** ((interval - 0.5) / INTERVALS_PER_DOUBLING);
}

/** The calls of one tool in a session. */
const toolSumsSchema = z.object({
  name: z.string().describe('`(unknown)` for names that the request did not offer'),
  calls: countSchema,
  failures: countSchema.describe(
    'calls that could not be run, because their arguments are no JSON object or the tool does not exist; for floe agents also those that failed',
  ),
  total_ms: z.number().describe('sum of the times of the answered calls'),
  times: z
    .record(z.string().regex(/^[0-9]{1,3}$/), countSchema)
    .describe(
      'number of answered calls by the interval of their time, from the end of the reply to the request with the result: ' +
        'interval N has the times up to 2^(N/4) ms that interval N-1 does not have',
    ),
});
export type ToolSums = z.infer<typeof toolSumsSchema>;

/** Numbers of a session's model calls and tool calls, in the form that the server sums over sessions. */
export const callSumsSchema = z.object({
  dialects: z.array(dialectNameSchema).describe('dialects of the calls'),
  engines: z.array(engineKindNameSchema).describe('kinds of the engines that sampled the replies'),
  engine_ms: z.number().describe('sum of the times that the engines took'),
  spliced: countSchema.describe('prompts that begin with the ids of an earlier call'),
  rendered: z.partialRecord(renderReasonSchema, countSchema).describe('the other prompts by reason'),
  tools: z.array(toolSumsSchema),
});
export type CallSums = z.infer<typeof callSumsSchema>;
