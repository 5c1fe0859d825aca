import { z } from 'zod';

const textBlockSchema = z.looseObject({ type: z.literal('text'), text: z.string() });

const imageBlockSchema = z.looseObject({
  type: z.literal('image'),
  source: z.discriminatedUnion('type', [
    z.looseObject({ type: z.literal('base64'), media_type: z.string(), data: z.string() }),
    z.looseObject({ type: z.literal('url'), url: z.string() }),
  ]),
});

const documentBlockSchema = z.looseObject({
  type: z.literal('document'),
  source: z.discriminatedUnion('type', [
    z.looseObject({ type: z.literal('text'), data: z.string() }),
    z.looseObject({ type: z.literal('base64') }),
    z.looseObject({ type: z.literal('url') }),
    z.looseObject({ type: z.literal('content') }),
  ]),
});

const toolReferenceSchema = z.looseObject({ type: z.literal('tool_reference'), tool_name: z.string() });

const resultBlockSchema = z.discriminatedUnion('type', [
  textBlockSchema,
  imageBlockSchema,
  documentBlockSchema,
  toolReferenceSchema,
]);
export type ForeignResultBlock = z.output<typeof resultBlockSchema>;

export const userBlockSchema = z.discriminatedUnion('type', [
  textBlockSchema,
  imageBlockSchema,
  documentBlockSchema,
  toolReferenceSchema,
  z.looseObject({
    type: z.literal('tool_result'),
    tool_use_id: z.string(),
    content: z.union([z.string(), z.array(resultBlockSchema)]).nullish(),
    is_error: z.boolean().nullish(),
  }),
]);

export const assistantBlockSchema = z.discriminatedUnion('type', [
  textBlockSchema,
  z.looseObject({ type: z.literal('thinking'), thinking: z.string() }),
  z.looseObject({ type: z.literal('redacted_thinking') }),
  z.looseObject({
    type: z.literal('tool_use'),
    id: z.string(),
    name: z.string(),
    input: z.record(z.string(), z.unknown()),
  }),
]);

const toolSchema = z.looseObject({
  type: z.string().nullish(),
  name: z.string().optional(),
  description: z.string().nullish(),
  input_schema: z.record(z.string(), z.unknown()).optional(),
  defer_loading: z.boolean().nullish(),
});

const parallelFlag = { disable_parallel_tool_use: z.boolean().nullish() };

const toolChoiceSchema = z.discriminatedUnion('type', [
  z.looseObject({ type: z.literal('auto'), ...parallelFlag }),
  z.looseObject({ type: z.literal('any'), ...parallelFlag }),
  z.looseObject({ type: z.literal('none'), ...parallelFlag }),
  z.looseObject({ type: z.literal('tool'), name: z.string(), ...parallelFlag }),
]);

const outputFormatSchema = z.looseObject({
  type: z.literal('json_schema'),
  schema: z.record(z.string(), z.unknown()),
});

/** A Messages request. Which blocks a message may hold depends on its role, so they are checked one level further in. */
export const requestSchema = z.looseObject({
  model: z.string(),
  messages: z
    .array(
      z.looseObject({
        role: z.enum(['user', 'assistant', 'system']),
        content: z.union([z.string(), z.array(z.unknown())]),
      }),
    )
    .min(1),
  system: z.union([z.string(), z.array(textBlockSchema)]).nullish(),
  tools: z.array(toolSchema).nullish(),
  tool_choice: toolChoiceSchema.nullish(),
  output_config: z.looseObject({ effort: z.unknown(), format: outputFormatSchema.nullish() }).nullish(),
  output_format: outputFormatSchema.nullish(),
  stream: z.boolean().nullish(),
  max_tokens: z.int().min(1).nullish(),
  temperature: z.number().nullish(),
  top_p: z.number().nullish(),
  top_k: z.number().nullish(),
  stop_sequences: z.array(z.string()).nullish(),
});
export type ForeignRequest = z.output<typeof requestSchema>;
