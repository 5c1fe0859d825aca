import { type FloeError, fieldError } from '@floe-rl/core';
import { z } from 'zod';
import type { HarmlessFields } from '../ignored-fields.ts';

// The schemas of this file do not list the fields that floe does not use, because zod would copy these fields, which costs more than all
// checks.

/** Name of this kind of request in error messages. */
export const REQUEST_NAME = 'responses request';

/** Quotes a client's text for an error message: at most 64 characters, with control characters escaped. */
export function quotedStart(text: string): string {
  return JSON.stringify(text.slice(0, 64));
}

/** Makes the error for a field that is checked without a schema, in the same form as the errors of `parseAs`. */
export function violation(path: string, message: string): FloeError {
  return fieldError(path, message, { input: REQUEST_NAME });
}

const imagePartSchema = z.object({
  type: z.literal('input_image'),
  image_url: z.string().nullish(),
  file_id: z.string().nullish(),
});

const textPart = <T extends string>(type: T) => z.object({ type: z.literal(type), text: z.string() });

/** Schema of one content part of a message or of a tool's output. */
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
export type WirePart = z.output<typeof partSchema>;

const itemId = z.string().nullish();

/** Schema of a message item. The content is checked separately, so that an error message can name the wrong part. */
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
export type WireReasoning = z.output<typeof reasoningSchema>;

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

/** Schema of the one field that all tool declarations have. */
export const toolSchema = z.object({ type: z.string() });

/**
 * Maximum number of characters of the name of a tool or namespace. Real names are shorter. The names are stored with each call, and the
 * context window does not limit them, because long ones are shortened in the prompt.
 */
const MAX_DECLARED_NAME_CHARS = 512;
const toolName = z.string().min(1).max(MAX_DECLARED_NAME_CHARS);

export const functionToolSchema = z.object({
  name: toolName,
  description: z.string().nullish(),
  parameters: z.record(z.string(), z.unknown()).nullish(),
  strict: z.boolean().nullish(),
  defer_loading: z.boolean().nullish(),
});
export type WireFunctionTool = z.output<typeof functionToolSchema>;

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
export type WireCustomTool = z.output<typeof customToolSchema>;

export const namespaceToolSchema = z.object({
  name: toolName,
  description: z.string().nullish(),
  tools: z.array(z.unknown()),
});

/** Schema of a `tool_choice` that is an object instead of a string. */
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

export const TEXT_FIELDS = { format: formatSchema.nullish() };

/** Fields that concern only the vendor's bookkeeping. */
export const HARMLESS_FIELDS: HarmlessFields = {
  client_metadata: 'labels of Codex, which it also sends as headers',
  metadata: 'labels for requests that the vendor stores',
  prompt_cache_key: "hint for the vendor's cache",
  prompt_cache_options: "hint for the vendor's cache",
  prompt_cache_retention: "hint for the vendor's cache",
  safety_identifier: 'names the end user',
  service_tier: 'selects a price',
  store: 'replies are kept as long as the session lasts',
  user: 'names the end user',
};

/** Fields of `reasoning` that change nothing, because the whole thinking is returned as the summary. */
export const HARMLESS_REASONING_FIELDS: HarmlessFields = {
  generate_summary: 'the summary is the whole thinking',
  summary: 'the summary is the whole thinking',
};

export const HARMLESS_STREAM_OPTIONS: HarmlessFields = { include_obfuscation: 'padding of events' };

/** Schema of the body of a token count request, in which the model is optional. Input, tools and tool choice are checked separately. */
export const countSchema = z.looseObject({
  model: z.string().nullish(),
  input: z.unknown().optional(),
  instructions: z.string().nullish(),
  previous_response_id: z.string().nullish(),
  tools: z.array(z.unknown()).nullish(),
  tool_choice: z.unknown().optional(),
  parallel_tool_calls: z.boolean().nullish(),
  include: z.array(z.string()).nullish(),
  text: z.looseObject(TEXT_FIELDS).nullish(),
  reasoning: z.looseObject({}).nullish(),
  truncation: z.string().nullish(),
  background: z.boolean().nullish(),
  stream: z.boolean().nullish(),
  max_output_tokens: z.int().min(1).nullish(),
  temperature: z.number().nullish(),
  top_p: z.number().nullish(),
});

export const requestSchema = countSchema.extend({ model: z.string() });
export type WireRequest = z.output<typeof countSchema>;
