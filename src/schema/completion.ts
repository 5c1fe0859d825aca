import { z } from 'zod';
import {
  assistantMessageSchema,
  chatMessageSchema,
  chatToolSchema,
  dialectNameSchema,
  finishReasonSchema,
} from './chat.ts';
import { idSchema, timestampSchema } from './identifiers.ts';
import { samplingAskedSchema, samplingSchema } from './sampling.ts';
import { linkKindSchema, versionSpanSchema } from './trajectory.ts';

export const callKindSchema = z.enum(['main', 'subagent', 'compaction', 'title', 'routing', 'memory', 'probe']);
export type CallKind = z.infer<typeof callKindSchema>;

/** What stopped the reply: a token id, or a stop string. */
export const stopCauseSchema = z.discriminatedUnion('kind', [
  z.object({ kind: z.literal('token'), id: z.int() }),
  z.object({ kind: z.literal('string'), text: z.string() }),
]);
export type StopCause = z.infer<typeof stopCauseSchema>;

export const usageSchema = z.object({
  prompt_tokens: z.int(),
  completion_tokens: z.int(),
  cached_tokens: z.int().nullable(),
});
export type Usage = z.infer<typeof usageSchema>;

/** One captured model call, as served and stored: prompt ids and messages are deltas to an earlier completion. */
export const completionRecordSchema = z.object({
  completion_id: z.string(),
  session_id: idSchema,
  attempt: z.int(),
  index: z.int().describe('arrival order within the attempt'),
  timestamp: timestampSchema,
  dialect: dialectNameSchema,
  call_kind: callKindSchema,
  thread: z.string().describe("the harness's own agent thread; `main` when it names none"),
  request: z.object({
    base: z.string().nullable().describe('completion whose request messages this one repeats'),
    keep: z.int().describe('how many of its messages are repeated'),
    messages: z.array(chatMessageSchema).describe('the messages after those'),
    tools: z.array(chatToolSchema).nullable().describe('null: the same as those of `base`'),
    sampling_asked: samplingAskedSchema,
    sampling: samplingSchema,
    adjusted: z.array(z.string()).describe('what the proxy dropped or changed'),
  }),
  prompt: z.object({
    base: z.string().nullable(),
    keep: z.int().describe('how many ids of the prompt + response of `base` are repeated'),
    ids: z.array(z.int()),
  }),
  link: linkKindSchema,
  response_ids: z.array(z.int()),
  response_logprobs: z.array(z.number()),
  version_spans: z.array(versionSpanSchema),
  message: assistantMessageSchema,
  finish_reason: finishReasonSchema,
  stop: stopCauseSchema.nullable(),
  engine_id: z.string(),
  model: z.string(),
  usage: usageSchema,
  timings: z.object({ engine_ms: z.number(), total_ms: z.number() }),
  abandoned: z.boolean(),
  auxiliary: z.boolean(),
  undelivered: z.boolean(),
});
export type CompletionRecord = z.infer<typeof completionRecordSchema>;
