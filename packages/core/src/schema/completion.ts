import { z } from 'zod';
import {
  assistantMessageSchema,
  chatMessageSchema,
  chatToolSchema,
  dialectNameSchema,
  finishReasonSchema,
  toolChoiceSchema,
} from './chat.ts';
import { captureModeSchema, logprobsModeSchema, thinkingRetentionSchema } from './engine.ts';
import { idSchema, timestampSchema } from './identifiers.ts';
import { requestedSamplingSchema, samplingSchema } from './sampling.ts';
import {
  constraintKindSchema,
  driftClassSchema,
  imagesSchema,
  linkKindSchema,
  routedExpertsSchema,
  versionSpanSchema,
} from './trajectory.ts';

export const callKindSchema = z.enum([
  'main',
  'subagent',
  'compaction',
  'title',
  'routing',
  'memory',
  'probe',
  'untrained',
]);
export type CallKind = z.infer<typeof callKindSchema>;

/** The token id or the stop string at which the engine ended the reply. */
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

/**
 * Why a prompt was rendered from messages. Normally a prompt is spliced: the token ids of a recorded turn, followed by the new messages.
 * `first`: the history has no assistant turn. `chat_mode`: the engine renders the messages. `rewritten`: the policy did not sample the
 * assistant turns of the history. `tools`: the policy sampled them, but with other tools. `thinking`: the template drops thinking at this
 * point, and the task permits that. `template`: the tokens that close a turn were not found in the template's rendering. `cut`: the harness
 * received a turn only up to a position inside one of its tokens, so the recorded ids cannot be continued. `images`: a message contains an
 * image, which token ids leave out, so the engine renders the messages although the mode is tokens.
 */
export const renderReasonSchema = z.enum([
  'first',
  'chat_mode',
  'rewritten',
  'tools',
  'thinking',
  'template',
  'cut',
  'images',
]);
export type RenderReason = z.infer<typeof renderReasonSchema>;

/** How the prompt of a call was made, and the distribution to which its log-probabilities belong. */
export const captureSchema = z.object({
  mode: captureModeSchema,
  logprobs_mode: logprobsModeSchema
    .nullable()
    .describe('distribution of the log-probabilities; null when there are none'),
  thinking_retention: thinkingRetentionSchema,
  spliced_onto: z
    .string()
    .nullable()
    .describe(
      'id of the completion whose recorded ids begin the prompt: its prompt, and its response as far as the harness received it; ' +
        'null when the prompt was rendered',
    ),
  rendered_because: renderReasonSchema
    .nullable()
    .describe('why the prompt was rendered from messages; null when it was spliced'),
});
export type Capture = z.infer<typeof captureSchema>;

/**
 * The fields of a completion, in groups that are written in this order. Three types are derived from this definition: the completion in
 * memory, the header of the journal's records, and, with keys in snake case, the API's record.
 */
export const completionFields = {
  names: {
    completionId: z.string(),
    sessionId: idSchema,
    attempt: z.int(),
    index: z.int().describe('number of the call in the attempt, in the order of arrival, from 0'),
  },
  origin: {
    dialect: dialectNameSchema,
    callKind: callKindSchema,
    thread: z.string().describe('agent thread that the harness names; `main` when it names none'),
  },
  reply: {
    message: assistantMessageSchema,
    engineCallIds: z
      .array(z.string())
      .describe("the engine's ids of the message's tool calls; harnesses receive ids that floe makes"),
    finishReason: finishReasonSchema,
    stop: stopCauseSchema.nullable(),
    engineId: z.string(),
    model: z.string(),
    usage: usageSchema,
  },
  timings: { engineMs: z.number(), totalMs: z.number() },
  marks: { abandoned: z.boolean(), auxiliary: z.boolean(), undelivered: z.boolean() },
  sampling: {
    samplingAsked: requestedSamplingSchema,
    toolChoice: toolChoiceSchema.nullable().describe('tool choice of the request; null when it has none'),
    parallelToolCalls: z
      .boolean()
      .nullable()
      .describe('whether the request allows several tool calls in one reply; null when it does not state this'),
    sampling: samplingSchema,
    constraint: constraintKindSchema
      .nullable()
      .describe(
        'what restricted the tokens of the reply, all of them; null when the policy was free to sample any token',
      ),
    adjusted: z.array(z.string()).describe('request fields that the proxy dropped or changed'),
  },
} as const;

type SnakeCase<Name extends string> = Name extends `${infer Head}${infer Tail}`
  ? `${Head extends Lowercase<Head> ? Head : `_${Lowercase<Head>}`}${SnakeCase<Tail>}`
  : Name;

/** The type of an object whose keys are in snake case instead of camel case. */
type SnakeCased<Fields> = { [Name in keyof Fields & string as SnakeCase<Name>]: Fields[Name] };

export function snakeCase(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

function snakeCased<Fields extends z.ZodRawShape>(fields: Fields): SnakeCased<Fields> {
  const renamed = Object.entries(fields).map(([name, field]) => [snakeCase(name), field]);
  return Object.fromEntries(renamed) as SnakeCased<Fields>;
}

/** One captured model call as the API returns it. Prompt ids and messages are stored as differences to an earlier completion, `base`. */
export const completionRecordSchema = z.object({
  ...snakeCased(completionFields.names),
  timestamp: timestampSchema,
  ...snakeCased(completionFields.origin),
  request: z.object({
    base: z.string().nullable().describe('id of the completion whose first request messages this one repeats'),
    keep: z.int().describe('number of messages of `base` that are repeated'),
    messages: z.array(chatMessageSchema).describe('the messages after the repeated ones'),
    images: imagesSchema.describe(
      'URLs of the images in `messages`, except of those that an earlier record contains; the keys are the references to them in `messages`',
    ),
    tools: z
      .array(chatToolSchema)
      .nullable()
      .describe('tools of the request; null when they are the same as those of `base`'),
    ...snakeCased(completionFields.sampling),
  }),
  prompt: z.object({
    base: z.string().nullable(),
    keep: z.int().describe('number of ids of prompt and response of `base` that are repeated'),
    ids: z.array(z.int()),
  }),
  link: linkKindSchema,
  drift: driftClassSchema
    .nullable()
    .describe(
      'why the previous assistant turn has other token ids than were sampled; null unless the link is `rerendered`',
    ),
  capture: captureSchema,
  response_ids: z.array(z.int()),
  response_logprobs: z.array(z.number()),
  version_spans: z.array(versionSpanSchema),
  routed_experts: routedExpertsSchema.nullable(),
  ...snakeCased(completionFields.reply),
  timings: z.object(snakeCased(completionFields.timings)),
  ...snakeCased(completionFields.marks),
});
export type CompletionRecord = z.infer<typeof completionRecordSchema>;
