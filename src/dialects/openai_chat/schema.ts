import { z } from 'zod';
import { jsonObjectSchema } from '../json-object.ts';

/** Name of the request in error messages. */
export const REQUEST_NAME = 'chat completion request';

export const partsSchema = z.array(
  z.discriminatedUnion('type', [
    z.object({ type: z.literal('text'), text: z.string() }),
    z.object({ type: z.literal('image_url'), image_url: z.object({ url: z.string() }) }),
    z.object({ type: z.literal('refusal'), refusal: z.string() }),
    z.object({ type: z.enum(['input_audio', 'file']) }),
  ]),
);

const toolCallSchema = z.object({
  id: z.string(),
  type: z.string().nullish(),
  function: z.object({ name: z.string(), arguments: z.string() }).nullish(),
  custom: z.object({ name: z.string(), input: z.string() }).nullish(),
});
export type WireToolCall = z.output<typeof toolCallSchema>;

const content = z.unknown().optional();

const assistantSchema = z.object({
  role: z.literal('assistant'),
  content,
  reasoning_content: z.string().nullish(),
  reasoning: z.string().nullish(),
  refusal: z.string().nullish(),
  tool_calls: z.array(toolCallSchema).nullish(),
  function_call: z.unknown().optional(),
});
export type WireAssistant = z.output<typeof assistantSchema>;

const messageSchema = z.discriminatedUnion('role', [
  z.object({ role: z.literal('system'), content }),
  z.object({ role: z.literal('developer'), content }),
  z.object({ role: z.literal('user'), content }),
  assistantSchema,
  z.object({ role: z.literal('tool'), tool_call_id: z.string(), content }),
  z.object({ role: z.literal('function') }),
]);
export type WireMessage = z.output<typeof messageSchema>;

const toolSchema = z.object({
  type: z.string(),
  function: z
    .object({
      name: z.string(),
      description: z.string().nullish(),
      parameters: jsonObjectSchema.nullish(),
      strict: z.boolean().nullish(),
    })
    .optional(),
  custom: z
    .object({
      name: z.string(),
      description: z.string().nullish(),
      format: z
        .object({
          type: z.string(),
          grammar: z.object({ syntax: z.string(), definition: z.string() }).nullish(),
        })
        .nullish(),
    })
    .optional(),
});

const named = z.object({ name: z.string() });

const toolChoiceSchema = z.union([
  z.enum(['auto', 'none', 'required']),
  z.discriminatedUnion('type', [
    z.object({ type: z.literal('function'), function: named }),
    z.object({ type: z.literal('custom'), custom: named }),
    z.object({
      type: z.literal('allowed_tools'),
      allowed_tools: z.object({ mode: z.enum(['auto', 'required']), tools: z.array(z.unknown()) }),
    }),
  ]),
]);

const formatSchema = z.object({
  type: z.string(),
  json_schema: z
    .object({ name: z.string().nullish(), schema: jsonObjectSchema.nullish(), strict: z.boolean().nullish() })
    .nullish(),
});

/** Schema of a Chat Completions request. The contents of messages are checked when they are read. */
export const requestSchema = z.object({
  model: z.string(),
  messages: z.array(messageSchema).min(1),
  tools: z.array(toolSchema).nullish(),
  tool_choice: toolChoiceSchema.nullish(),
  parallel_tool_calls: z.boolean().nullish(),
  stream: z.boolean().nullish(),
  stream_options: z.object({ include_usage: z.boolean().nullish() }).nullish(),
  n: z.int().nullish(),
  temperature: z.number().nullish(),
  top_p: z.number().nullish(),
  top_k: z.number().nullish(),
  max_tokens: z.int().min(1).nullish(),
  max_completion_tokens: z.int().min(1).nullish(),
  stop: z.union([z.string(), z.array(z.string())]).nullish(),
  seed: z.int().nullish(),
  response_format: formatSchema.nullish(),
  functions: z.array(z.unknown()).nullish(),
  function_call: z.unknown().optional(),
  continue_final_message: z.boolean().nullish(),
  add_generation_prompt: z.boolean().nullish(),
});
export type WireRequest = z.output<typeof requestSchema>;
