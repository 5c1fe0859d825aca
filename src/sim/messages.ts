import { z } from 'zod';
import { FloeError } from '../core/errors.ts';
import { imageText } from './image.ts';
import type { TemplateMessage } from './template.ts';

const partSchema = z.object({
  type: z.string(),
  text: z.string().optional(),
  image_url: z.union([z.string(), z.object({ url: z.string() })]).optional(),
});
type ContentPart = z.infer<typeof partSchema>;

/** A chat message as both faces take it. */
export const messageSchema = z.object({
  role: z.enum(['system', 'developer', 'user', 'assistant', 'tool']),
  content: z.union([z.string(), z.array(partSchema)]).nullish(),
  reasoning: z.string().nullish(),
  reasoning_content: z.string().nullish(),
  tool_calls: z
    .array(
      z.object({
        function: z.object({
          name: z.string(),
          arguments: z.union([z.string(), z.record(z.string(), z.unknown())]).nullish(),
        }),
      }),
    )
    .nullish(),
});

/** vLLM takes any role. */
export const anyRoleMessageSchema = messageSchema.extend({ role: z.string() });

export type ChatMessage = z.infer<typeof messageSchema>;

/**
 * Throws `engine_rejected` naming the message for parts that are neither text nor, with `vision`, images, and, unless
 * `anyArguments`, for arguments that are no JSON.
 */
export function templateMessages(
  messages: readonly ChatMessage[],
  options: { readonly vision: boolean; readonly anyArguments: boolean },
): TemplateMessage[] {
  return messages.map((message, index) => ({
    role: message.role === 'developer' ? 'system' : message.role,
    text: textOf(message.content ?? '', `messages.${index}.content`, options.vision),
    reasoning: message.reasoning ?? message.reasoning_content ?? null,
    toolCalls: (message.tool_calls ?? []).map((call) => ({
      name: call.function.name,
      argumentsText: argumentsText(call.function.arguments ?? '{}', index, options.anyArguments),
    })),
  }));
}

/** Parts stand in lines of their own, in the order given. `path` names the content in messages. */
function textOf(content: string | readonly ContentPart[], path: string, vision: boolean): string {
  if (typeof content === 'string') return content;
  return content
    .map((part, index) => {
      if (part.type === 'text' && part.text !== undefined) return part.text;
      const image = part.type === 'image_url' && vision ? part.image_url : undefined;
      if (image !== undefined) return imageText(typeof image === 'string' ? image : image.url, `${path}.${index}`);
      throw new FloeError('engine_rejected', `${path}: ${part.type} parts are not supported by this model`);
    })
    .join('\n');
}

/** JSON text is rendered as it is. SGLang parses it first and refuses what is none; vLLM renders that as well. */
function argumentsText(value: string | Readonly<Record<string, unknown>>, index: number, any: boolean): string {
  if (typeof value !== 'string') return JSON.stringify(value);
  if (any) return value;
  try {
    JSON.parse(value);
  } catch (cause) {
    throw new FloeError(
      'engine_rejected',
      `messages.${index}.tool_calls: arguments are not valid JSON: ${(cause as Error).message}`,
      {},
      cause,
    );
  }
  return value;
}
