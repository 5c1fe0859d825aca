import { FloeError } from '@floe-rl/core';
import { z } from 'zod';
import { hashText } from './random.ts';
import type { TemplateMessage } from './template.ts';

const partSchema = z.object({
  type: z.string(),
  text: z.string().optional(),
  image_url: z.union([z.string(), z.object({ url: z.string() })]).optional(),
});
type ContentPart = z.infer<typeof partSchema>;

/** A chat message as both the vLLM and the SGLang API accept it. */
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

/** A chat message for vLLM, which accepts any role name. */
export const anyRoleMessageSchema = messageSchema.extend({ role: z.string() });

export type ChatMessage = z.infer<typeof messageSchema>;

/**
 * Converts chat messages to the form that the chat template renders. Throws `engine_rejected`, naming the message, for a content part other
 * than text. With `vision`, images are accepted as well. Unless `anyArguments` is set, also throws for call arguments that are not valid
 * JSON.
 */
export function templateMessages(
  messages: readonly ChatMessage[],
  options: { readonly vision: boolean; readonly anyArguments: boolean },
): TemplateMessage[] {
  return messages.map((message, index) => ({
    role: message.role === 'developer' ? 'system' : message.role,
    text: renderedContent(message.content ?? '', `messages.${index}.content`, options.vision),
    reasoning: message.reasoning ?? message.reasoning_content ?? null,
    toolCalls: (message.tool_calls ?? []).map((call) => ({
      name: call.function.name,
      argumentsText: argumentsText(call.function.arguments ?? '{}', index, options.anyArguments),
    })),
  }));
}

/**
 * Returns the text of a message's content. The parts of a content list are joined with newlines. `path` is the field's name in error
 * messages.
 */
function renderedContent(content: string | readonly ContentPart[], path: string, vision: boolean): string {
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

/**
 * Returns the arguments of a tool call as text; JSON text is returned unchanged. With `any`, as in vLLM, text that is not valid JSON is
 * accepted. Otherwise, as in SGLang, such text is refused.
 */
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

/** Minimum number of `<|image_pad|>` placeholders for one image in the prompt. Each placeholder takes 7 tokens. */
const MIN_IMAGE_PADS = 4;
/** Maximum number of `<|image_pad|>` placeholders of one image. Their 917 tokens are no more than a real screenshot takes. */
const MAX_IMAGE_PADS = 131;

/** Matches the placeholders of each image in the text of a rendered conversation. */
export const IMAGE_PATTERN = /<\|vision_start\|>(?:<\|image_pad\|>)+<\|vision_end\|>/g;

const IMAGE_URL_PREFIX = /^(?:data:image\/[a-z0-9.+-]+;base64,|https?:\/\/)/i;

/**
 * Returns the placeholders that the template writes for an image. They are ordinary text, because the bundled vocabulary has no special
 * tokens for images. Their number is derived from a hash of the URL, so that different images usually give different prompts. (With real
 * models, images of the same size give the same ids.) No image is fetched or decoded. `path` is the field's name in error messages. Throws
 * `engine_rejected` for a URL that is neither http(s) nor a base64 image.
 */
function imageText(url: string, path: string): string {
  const prefix = IMAGE_URL_PREFIX.exec(url)?.[0];
  if (prefix === undefined) {
    throw new FloeError('engine_rejected', `${path}: The URL must be either a HTTP or a base64 image data URL.`);
  }
  const rest = url.slice(prefix.length);
  if (rest === '' || (prefix.startsWith('data:') && !isBase64(rest))) {
    throw new FloeError('engine_rejected', `${path}: the image is empty or not valid base64.`);
  }
  const pads = MIN_IMAGE_PADS + (hashText(url) % (MAX_IMAGE_PADS - MIN_IMAGE_PADS + 1));
  return `<|vision_start|>${'<|image_pad|>'.repeat(pads)}<|vision_end|>`;
}

function isBase64(text: string): boolean {
  return /^[A-Za-z0-9+/\s]+={0,2}\s*$/.test(text);
}
