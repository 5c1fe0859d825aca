import { z } from 'zod';

// Fields that nobody reads are left out: copying them would cost more than checking the rest.

const imagePartSchema = z.object({
  type: z.literal('input_image'),
  image_url: z.string().nullish(),
  file_id: z.string().nullish(),
});

const textPart = <T extends string>(type: T) => z.object({ type: z.literal(type), text: z.string() });

/** One part of a message or of a tool's output. */
export const partSchema = z.discriminatedUnion('type', [
  textPart('input_text'),
  textPart('output_text'),
  textPart('summary_text'),
  textPart('reasoning_text'),
  textPart('text'),
  z.object({ type: z.literal('refusal'), refusal: z.string() }),
  imagePartSchema,
  z.object({ type: z.literal('input_file') }),
]);
export type ForeignPart = z.output<typeof partSchema>;

const itemId = z.string().nullish();

/** The content of these is checked one level further in, so that an error names the part. */
export const messageSchema = z.object({
  id: itemId,
  role: z.enum(['user', 'assistant', 'system', 'developer']),
  content: z.unknown().optional(),
});

export const outputSchema = z.object({ call_id: z.string(), output: z.unknown().optional() });

export const agentMessageSchema = z.object({ content: z.unknown().optional() });

export const reasoningSchema = z.object({
  id: itemId,
  content: z.array(z.discriminatedUnion('type', [textPart('reasoning_text'), textPart('text')])).nullish(),
  summary: z.array(textPart('summary_text')).nullish(),
  encrypted_content: z.string().nullish(),
});
export type ForeignReasoning = z.output<typeof reasoningSchema>;

export const functionCallSchema = z.object({
  id: itemId,
  call_id: z.string(),
  name: z.string(),
  namespace: z.string().nullish(),
  arguments: z.string(),
});

export const customCallSchema = z.object({
  id: itemId,
  call_id: z.string(),
  name: z.string(),
  namespace: z.string().nullish(),
  input: z.string(),
});

export const referenceSchema = z.object({ id: z.string() });

export const compactionSchema = z.object({ encrypted_content: z.string() });

export const additionalToolsSchema = z.object({ tools: z.array(z.unknown()) });

/** A tool before its type is known. */
export const toolSchema = z.object({ type: z.string() });

const toolName = z.string().min(1);

export const functionToolSchema = z.object({
  name: toolName,
  description: z.string().nullish(),
  parameters: z.record(z.string(), z.unknown()).nullish(),
  defer_loading: z.boolean().nullish(),
});
export type ForeignFunctionTool = z.output<typeof functionToolSchema>;

export const customToolSchema = z.object({
  name: toolName,
  description: z.string().nullish(),
  format: z
    .discriminatedUnion('type', [
      z.object({ type: z.literal('text') }),
      z.object({ type: z.literal('grammar'), syntax: z.string(), definition: z.string() }),
    ])
    .nullish(),
});
export type ForeignCustomTool = z.output<typeof customToolSchema>;

export const namespaceToolSchema = z.object({
  name: toolName,
  description: z.string().nullish(),
  tools: z.array(z.unknown()),
});

/** A tool choice that is no word. */
export const toolChoiceSchema = z.object({
  type: z.string(),
  name: z.string().nullish(),
  namespace: z.string().nullish(),
  mode: z.enum(['auto', 'required']).nullish(),
});

const formatSchema = z.discriminatedUnion('type', [
  z.object({ type: z.literal('text') }),
  z.object({ type: z.literal('json_object') }),
  z.object({
    type: z.literal('json_schema'),
    name: z.string(),
    schema: z.record(z.string(), z.unknown()),
    strict: z.boolean().nullish(),
  }),
]);

/** The body of a count, which may lack the model. Input, tools and tool choice are checked one level further in. */
export const countSchema = z.looseObject({
  model: z.string().nullish(),
  input: z.unknown().optional(),
  instructions: z.string().nullish(),
  previous_response_id: z.string().nullish(),
  tools: z.array(z.unknown()).nullish(),
  tool_choice: z.unknown().optional(),
  parallel_tool_calls: z.boolean().nullish(),
  include: z.array(z.string()).nullish(),
  text: z.looseObject({ format: formatSchema.nullish(), verbosity: z.unknown().optional() }).nullish(),
  reasoning: z.looseObject({ effort: z.unknown().optional() }).nullish(),
  truncation: z.string().nullish(),
  background: z.boolean().nullish(),
  stream: z.boolean().nullish(),
  max_output_tokens: z.int().min(1).nullish(),
  temperature: z.number().nullish(),
  top_p: z.number().nullish(),
});

export const requestSchema = countSchema.extend({ model: z.string() });
export type ForeignRequest = z.output<typeof countSchema>;
