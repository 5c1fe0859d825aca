import { z } from 'zod';
import type { HarmlessFields } from '../ignored-fields.ts';
import { jsonObjectSchema } from '../json-object.ts';

/** Name of this kind of request in error messages. */
export const REQUEST_NAME = 'messages request';

const textBlockSchema = z.object({
  type: z.literal('text'),
  text: z.string(),
  citations: z.array(z.unknown()).nullish(),
});

const imageBlockSchema = z.object({
  type: z.literal('image'),
  source: z.discriminatedUnion('type', [
    z.object({ type: z.literal('base64'), media_type: z.string(), data: z.string() }),
    z.object({ type: z.literal('url'), url: z.string() }),
    z.object({ type: z.literal('file') }),
  ]),
});

const documentBlockSchema = z.object({
  type: z.literal('document'),
  source: z.discriminatedUnion('type', [
    z.object({ type: z.literal('text'), data: z.string() }),
    z.object({ type: z.literal('base64') }),
    z.object({ type: z.literal('url') }),
    z.object({ type: z.literal('file') }),
    z.object({ type: z.literal('content') }),
  ]),
});

const searchResultSchema = z.object({
  type: z.literal('search_result'),
  source: z.string(),
  title: z.string(),
  content: z.array(textBlockSchema),
});

const toolReferenceSchema = z.object({ type: z.literal('tool_reference'), tool_name: z.string() });

/**
 * Schema of the content blocks for tools and files on the servers of the vendor. floe never sends such blocks, but a history from another
 * provider may contain them.
 */
const vendorBlockSchema = z.object({
  type: z.enum([
    'server_tool_use',
    'web_search_tool_result',
    'web_fetch_tool_result',
    'code_execution_tool_result',
    'bash_code_execution_tool_result',
    'text_editor_code_execution_tool_result',
    'tool_search_tool_result',
    'mcp_tool_use',
    'mcp_tool_result',
    'container_upload',
  ]),
});

const partSchemas = [
  textBlockSchema,
  imageBlockSchema,
  documentBlockSchema,
  searchResultSchema,
  toolReferenceSchema,
  vendorBlockSchema,
] as const;

export const systemBlocksSchema = z.array(textBlockSchema);

export const resultBlocksSchema = z.array(z.discriminatedUnion('type', partSchemas));
export type WirePart = z.output<typeof resultBlocksSchema>[number];

export const userBlocksSchema = z.array(
  z.discriminatedUnion('type', [
    ...partSchemas,
    z.object({
      type: z.literal('tool_result'),
      tool_use_id: z.string(),
      content: z.unknown().optional(),
      is_error: z.boolean().nullish(),
    }),
  ]),
);

export const assistantBlocksSchema = z.array(
  z.discriminatedUnion('type', [
    textBlockSchema,
    z.object({ type: z.literal('thinking'), thinking: z.string(), signature: z.string().nullish() }),
    z.object({ type: z.literal('redacted_thinking') }),
    // The input may be any value: Claude Code returns the arguments that the policy wrote, which need not be an object.
    z.object({ type: z.literal('tool_use'), id: z.string(), name: z.string(), input: z.unknown() }),
    vendorBlockSchema,
  ]),
);
export type WireAssistantBlock = z.output<typeof assistantBlocksSchema>[number];

export const toolSchema = z.object({
  type: z.string().nullish(),
  name: z.string().optional(),
  description: z.string().nullish(),
  input_schema: jsonObjectSchema.nullish(),
  defer_loading: z.boolean().nullish(),
  strict: z.boolean().nullish(),
});

const parallelFlag = { disable_parallel_tool_use: z.boolean().nullish() };

const toolChoiceSchema = z.discriminatedUnion('type', [
  z.object({ type: z.literal('auto'), ...parallelFlag }),
  z.object({ type: z.literal('any'), ...parallelFlag }),
  z.object({ type: z.literal('none'), ...parallelFlag }),
  z.object({ type: z.literal('tool'), name: z.string(), ...parallelFlag }),
]);

/**
 * Schema of the field that refers to a conversation stored by the server. A request of type `continue` contains only the messages that
 * follow the stored conversation.
 */
const threadSchema = z.discriminatedUnion('type', [
  z.object({ type: z.literal('create') }),
  z.object({ type: z.literal('continue'), previous_message_id: z.string() }),
]);

export const outputConfigSchema = z.object({ format: z.unknown().optional() });

/** Fields that concern only the vendor's bookkeeping. */
export const HARMLESS_FIELDS: HarmlessFields = {
  anthropic_version: 'version of the API on other clouds',
  betas: 'switches on the fields of new API versions, which are treated one by one',
  cache_control: 'engines cache every prefix',
  inference_geo: "selects the vendor's region",
  metadata: 'names the end user',
  service_tier: 'selects a price',
};

/** Fields of a tool's declaration that do not change the prompt. */
export const HARMLESS_TOOL_FIELDS: HarmlessFields = {
  cache_control: 'engines cache every prefix',
  eager_input_streaming: 'arguments are streamed as they are sampled',
};

/**
 * Schema of a Messages request. The blocks that a message may contain depend on its role, so the content of each message is checked later,
 * when it is translated.
 */
export const requestSchema = z.object({
  model: z.string(),
  messages: z.array(z.object({ role: z.enum(['user', 'assistant', 'system']), content: z.unknown() })).min(1),
  system: z.unknown().optional(),
  tools: z.array(toolSchema).nullish(),
  tool_choice: toolChoiceSchema.nullish(),
  // Of this field only the JSON schema inside `format` is checked, because the form of the field has changed between API versions.
  output_config: outputConfigSchema.nullish(),
  output_format: z.unknown().optional(),
  stream: z.boolean().nullish(),
  max_tokens: z.int().min(1).nullish(),
  temperature: z.number().nullish(),
  top_p: z.number().nullish(),
  top_k: z.number().nullish(),
  stop_sequences: z.array(z.string()).nullish(),
  thread: threadSchema.nullish(),
});
export type WireRequest = z.output<typeof requestSchema>;

/** Schema of a `count_tokens` request, in which clients leave out the fields that only a generation needs. */
export const countSchema = requestSchema.extend({ model: z.string().default('') });

export const outputFormatSchema = z.object({ schema: jsonObjectSchema });
