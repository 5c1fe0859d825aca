import { z } from 'zod';
import { chatMessageSchema, chatToolSchema } from './chat.ts';
import { metadataSchema } from './identifiers.ts';

/** Positions `start` (inclusive) to `end` (exclusive) were sampled by weights `version`; null: the engine did not tell. */
export const versionSpanSchema = z.object({
  version: z.string().nullable(),
  start: z.int().min(0),
  end: z.int().min(0),
});
export type VersionSpan = z.infer<typeof versionSpanSchema>;

export const linkKindSchema = z.enum(['exact', 'rerendered', 'fork', 'root']);
export type LinkKind = z.infer<typeof linkKindSchema>;

/** Why the assistant turn of a `rerendered` link is not as it was sampled. */
export const driftClassSchema = z.enum(['retokenized', 'reserialized', 'reasoning_dropped', 'rewritten']);
export type DriftClass = z.infer<typeof driftClassSchema>;

/**
 * Which experts of a mixture-of-experts model each token went through: `shape` is [rows, layers, experts per token], `data` the
 * rows in C order, little-endian, base64. The rows begin with that of position `start`, counted over prompt and response;
 * the last token of all has none, since nothing was sampled after it.
 */
export const routedExpertsSchema = z.object({
  dtype: z.enum(['uint8', 'uint16', 'int32']),
  shape: z.tuple([z.int(), z.int(), z.int()]),
  start: z.int().min(0),
  data: z.string(),
});
export type RoutedExpertsRecord = z.infer<typeof routedExpertsSchema>;

/** One trainable token sequence. All arrays over the response have one length. */
export const traceSchema = z.object({
  trace_id: z.string(),
  prompt_ids: z.array(z.int()),
  response_ids: z.array(z.int()),
  loss_mask: z.array(z.int().min(0).max(1)).describe('1: sampled by the policy and trained in this trace'),
  response_logprobs: z.array(z.number()).describe('0 where loss_mask is 0'),
  version_spans: z.array(versionSpanSchema).describe('over response positions with loss_mask 1'),
  prompt_messages: z.array(chatMessageSchema),
  response_messages: z.array(chatMessageSchema),
  tools: z.array(chatToolSchema),
  routed_experts: routedExpertsSchema.nullable().describe('null: the engine did not tell'),
  finish_reason: z.string().nullable(),
  reward: z.number().nullable(),
  completion_ids: z.array(z.string()).describe('in chain order'),
  metadata: metadataSchema,
});
export type Trace = z.infer<typeof traceSchema>;

/** Conservation: every sampled token is trained once or excluded with a reason. */
export const auditSchema = z.object({
  tokens: z.object({
    sampled: z.int(),
    trained: z.int(),
    excluded: z.record(z.string(), z.int()),
  }),
  completions: z.object({
    recorded: z.int(),
    trained: z.int(),
    excluded: z.record(z.string(), z.int()),
  }),
  links: z.record(linkKindSchema, z.int()),
  drift: z.partialRecord(driftClassSchema, z.int()).describe('of the `rerendered` links'),
  exact_context_share: z
    .number()
    .nullable()
    .describe('share of trained tokens whose context in the trace is the one they were sampled in; null without any'),
});
export type Audit = z.infer<typeof auditSchema>;

export const trajectorySchema = z.object({
  status: z.enum(['COMPLETED', 'TIMEOUT', 'ERROR', 'CANCELLED']),
  builder: z.string(),
  traces: z.array(traceSchema),
  audit: auditSchema,
  error: z.string().nullable(),
  metadata: metadataSchema,
});
export type Trajectory = z.infer<typeof trajectorySchema>;
