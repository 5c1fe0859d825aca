import { z } from 'zod';
import { chatMessageSchema, chatToolSchema } from './chat.ts';
import { metadataSchema } from './identifiers.ts';

/**
 * The policy version that sampled the positions from `start` (inclusive) to `end` (exclusive). `version` is `null` when the engine did not
 * report it.
 */
export const versionSpanSchema = z.object({
  version: z.string().nullable(),
  start: z.int().min(0),
  end: z.int().min(0),
});
export type VersionSpan = z.infer<typeof versionSpanSchema>;

/**
 * The kind of constraint on the tokens that an engine may sample for a reply. `tool_choice`: the request forces a tool call.
 * `response_format`: the request requires a format of the text. A request with both is restricted by the forced tool call.
 */
export const constraintKindSchema = z.enum(['tool_choice', 'response_format']);
export type ConstraintKind = z.infer<typeof constraintKindSchema>;

/** The response positions from `start` (inclusive) to `end` (exclusive), which were sampled under a constraint. */
export const constrainedSpanSchema = z.object({
  constraint: constraintKindSchema,
  start: z.int().min(0),
  end: z.int().min(0),
});
export type ConstrainedSpan = z.infer<typeof constrainedSpanSchema>;

export const linkKindSchema = z.enum(['exact', 'rerendered', 'fork', 'root']);
export type LinkKind = z.infer<typeof linkKindSchema>;

/**
 * Why a prompt contains an earlier assistant turn with token ids that differ from the sampled ones. The completion with this prompt is then
 * linked to the earlier completion as `rerendered`.
 */
export const driftClassSchema = z.enum(['retokenized', 'reserialized', 'reasoning_dropped', 'cut', 'rewritten']);
export type DriftClass = z.infer<typeof driftClassSchema>;

/**
 * The experts of a mixture-of-experts model to which each token was routed. `shape` is [rows, layers, experts per token]; `data` contains
 * the rows in C order, little-endian, as base64. The first row belongs to position `start`, counted over prompt and response. The last
 * token has no row, because no token was sampled after it.
 */
export const routedExpertsSchema = z.object({
  dtype: z.enum(['uint8', 'uint16', 'int32']),
  shape: z.tuple([z.int(), z.int(), z.int()]),
  start: z.int().min(0),
  data: z.string(),
});
export type RoutedExpertsRecord = z.infer<typeof routedExpertsSchema>;

/** Beginning of a reference to an image. The SHA-256 of the image's URL follows it, in hexadecimal digits. */
export const IMAGE_REFERENCE = 'floe-image:';

/** URLs that contain an image, by the reference that stands for the URL in messages. */
export const imagesSchema = z.record(z.string(), z.string());

/** One trainable token sequence. All arrays over the response have the same length. */
export const traceSchema = z.object({
  trace_id: z.string(),
  prompt_ids: z.array(z.int()),
  response_ids: z.array(z.int()),
  loss_mask: z
    .array(z.int().min(0).max(1))
    .describe('1 where the policy sampled the token and it is trained in this trace, else 0'),
  response_logprobs: z.array(z.number()).describe('log-probability of each response token; 0 where loss_mask is 0'),
  version_spans: z.array(versionSpanSchema).describe('policy versions of the response positions with loss_mask 1'),
  constrained_spans: z
    .array(constrainedSpanSchema)
    .describe(
      'response positions, trained or not, that the policy sampled while a forced tool call or a response format restricted its choice',
    ),
  prompt_messages: z.array(chatMessageSchema),
  response_messages: z.array(chatMessageSchema),
  tools: z.array(chatToolSchema),
  routed_experts: routedExpertsSchema
    .nullable()
    .describe('experts of each token; null when the engine did not report them'),
  finish_reason: z.string().nullable(),
  reward: z.number().nullable(),
  completion_ids: z.array(z.string()).describe('ids of the completions in this trace, in order'),
  metadata: metadataSchema,
});
export type Trace = z.infer<typeof traceSchema>;

/** Counts that prove that every sampled token is either trained exactly once or excluded with a reason. */
export const auditSchema = z.object({
  tokens: z.object({
    sampled: z.int(),
    trained: z.int(),
    excluded: z.record(z.string(), z.int()),
    constrained: z.int().describe('trained tokens that were sampled under a constraint; they are part of `trained`'),
  }),
  completions: z.object({
    recorded: z.int(),
    trained: z.int(),
    excluded: z.record(z.string(), z.int()),
  }),
  links: z.record(linkKindSchema, z.int()),
  drift: z.partialRecord(driftClassSchema, z.int()).describe('number of `rerendered` links by cause'),
  exact_context_share: z
    .number()
    .nullable()
    .describe(
      'share of trained tokens whose context in the trace equals the one they were sampled in; null when no token is trained',
    ),
  context_images: z
    .int()
    .describe("images in the session's messages, each counted once; the ids of a context leave them out"),
  rendered_for_images: z
    .int()
    .describe(
      'completions in tokens mode whose messages the engine rendered because they contain images; their prompt ids are those that the engine reported',
    ),
  context_special_tokens: z
    .int()
    .describe(
      "texts with the form of a special token, such as <|im_end|>, in the session's system, user and tool messages, each counted once; " +
        'engines encode such a text as the special token itself',
    ),
});
export type Audit = z.infer<typeof auditSchema>;

export const trajectorySchema = z.object({
  status: z.enum(['COMPLETED', 'TIMEOUT', 'ERROR', 'CANCELLED']),
  builder: z.string(),
  traces: z.array(traceSchema),
  images: imagesSchema.describe(
    "URLs of the images in the session's messages; the keys are the references to them in these messages",
  ),
  audit: auditSchema,
  error: z.string().nullable(),
  metadata: metadataSchema,
});
export type Trajectory = z.infer<typeof trajectorySchema>;
