import { z } from 'zod';
import type { HarmlessFields } from '../ignored-fields.ts';
import { jsonObjectSchema } from '../json-object.ts';

/** Name of this kind of request in error messages. */
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

export const functionSchema = z.object({
  name: z.string(),
  description: z.string().nullish(),
  parameters: jsonObjectSchema.nullish(),
  strict: z.boolean().nullish(),
});

const toolSchema = z.object({
  type: z.string(),
  function: functionSchema.optional(),
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

/** Fields that concern only the vendor's bookkeeping, or the cache and queue of one server. */
export const HARMLESS_FIELDS: HarmlessFields = {
  cache_salt: 'floe gives each policy version a cache salt of its own',
  metadata: 'labels for requests that the vendor stores',
  priority: 'floe schedules the calls',
  prompt_cache_key: "hint for the vendor's cache",
  prompt_cache_options: "hint for the vendor's cache",
  prompt_cache_retention: "hint for the vendor's cache",
  request_id: 'the completion has an id of its own',
  rid: 'the completion has an id of its own',
  safety_identifier: 'names the end user',
  service_tier: 'selects a price',
  store: 'every completion is recorded',
  user: 'names the end user',
};

export const streamOptionsSchema = z.object({ include_usage: z.boolean().nullish() });

export const HARMLESS_STREAM_OPTIONS: HarmlessFields = { include_obfuscation: 'padding of events' };

/** Schema of a Chat Completions request. The content of each message is checked later, when the message is translated. */
export const requestSchema = z.object({
  model: z.string(),
  messages: z.array(messageSchema).min(1),
  tools: z.array(toolSchema).nullish(),
  tool_choice: toolChoiceSchema.nullish(),
  parallel_tool_calls: z.boolean().nullish(),
  stream: z.boolean().nullish(),
  stream_options: streamOptionsSchema.nullish(),
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
