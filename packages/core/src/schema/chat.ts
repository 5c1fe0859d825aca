import { z } from 'zod';

/**
 * Schemas of the canonical form of a chat. Requests of every dialect are translated to this form, and engines are called with it. The form is
 * OpenAI's chat format with `reasoning_content` for thinking, which both vLLM and SGLang accept.
 */

export const contentPartSchema = z.discriminatedUnion('type', [
  z.object({ type: z.literal('text'), text: z.string() }),
  z.object({ type: z.literal('image_url'), image_url: z.object({ url: z.string() }) }),
]);
export type ContentPart = z.infer<typeof contentPartSchema>;

export const contentSchema = z.union([z.string(), z.array(contentPartSchema)]);
export type Content = z.infer<typeof contentSchema>;

/**
 * Returns the text of a message's content; an empty text for a message without content. `separator` comes between its parts, and `image`
 * stands for each image. Images are left out when `image` is `null`.
 */
export function contentText(
  content: Content | null | undefined,
  { separator = '', image = null }: { readonly separator?: string; readonly image?: string | null } = {},
): string {
  if (typeof content === 'string') return content;
  const shown = image === null ? [] : [image];
  return (content ?? []).flatMap((part) => (part.type === 'text' ? [part.text] : shown)).join(separator);
}

/** A tool call of the policy. `arguments` is the JSON text exactly as the policy sampled it; it is never parsed and re-serialized. */
export const toolCallSchema = z.object({
  id: z.string(),
  type: z.literal('function'),
  function: z.object({ name: z.string(), arguments: z.string() }),
});
export type ToolCall = z.infer<typeof toolCallSchema>;

export const assistantMessageSchema = z.object({
  role: z.literal('assistant'),
  content: z.string().nullable(),
  reasoning_content: z.string().optional(),
  tool_calls: z.array(toolCallSchema).optional(),
});
export type AssistantMessage = z.infer<typeof assistantMessageSchema>;

export const chatMessageSchema = z.discriminatedUnion('role', [
  z.object({ role: z.literal('system'), content: contentSchema }),
  z.object({ role: z.literal('user'), content: contentSchema }),
  assistantMessageSchema,
  z.object({ role: z.literal('tool'), tool_call_id: z.string(), content: contentSchema }),
]);
export type ChatMessage = z.infer<typeof chatMessageSchema>;

export const chatToolSchema = z.object({
  type: z.literal('function'),
  function: z.object({
    name: z.string(),
    description: z.string().optional(),
    parameters: z.record(z.string(), z.unknown()).optional(),
  }),
});
export type ChatTool = z.infer<typeof chatToolSchema>;

export const toolChoiceSchema = z.union([
  z.enum(['auto', 'none', 'required']),
  z.object({ type: z.literal('function'), function: z.object({ name: z.string() }) }),
]);
export type ToolChoice = z.infer<typeof toolChoiceSchema>;

/** The format that the text of a reply must have. `schema` is a JSON Schema, which is sent to the engine unchanged. */
export const responseFormatSchema = z.discriminatedUnion('type', [
  z.object({ type: z.literal('json_object') }),
  z.object({
    type: z.literal('json_schema'),
    json_schema: z.object({
      name: z.string(),
      schema: z.record(z.string(), z.unknown()),
      strict: z.boolean().optional(),
    }),
  }),
]);
export type ResponseFormat = z.infer<typeof responseFormatSchema>;

export const finishReasonSchema = z.enum(['stop', 'length', 'tool_calls', 'abort']);
export type FinishReason = z.infer<typeof finishReasonSchema>;

export const dialectNameSchema = z.enum(['anthropic', 'openai_chat', 'openai_responses', 'gemini']);
export type DialectName = z.infer<typeof dialectNameSchema>;
