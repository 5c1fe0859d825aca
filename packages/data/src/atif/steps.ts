import { isRecord } from '@floe-rl/core';
import type { ChatMessage, Content } from '@floe-rl/core/schema';
import type { AtifContent, AtifResult, AtifStep } from './document.ts';

type Images = Readonly<Record<string, string>>;
type Call = NonNullable<AtifStep['tool_calls']>[number];

/** Returns the step of a message. `images` maps references of images to their places. */
export function stepOf(message: ChatMessage, images: Images): AtifStep {
  if (message.role !== 'assistant') {
    // A tool result without a step that made the call is written as a message, because ATIF has no other place for it.
    return { source: message.role === 'system' ? 'system' : 'user', message: toAtif(message.content, images) };
  }
  const calls = (message.tool_calls ?? []).map(
    ({ id, function: { name, arguments: text } }): Call => ({
      tool_call_id: id,
      function_name: name,
      ...argumentsOf(text),
    }),
  );
  return {
    source: 'agent',
    message: message.content ?? '',
    ...(message.reasoning_content === undefined ? {} : { reasoning_content: message.reasoning_content }),
    ...(calls.length === 0 ? {} : { tool_calls: calls }),
  };
}

/** Returns the result of a tool call, for the step that made the call. */
export function resultOf(callId: string, content: Content, images: Images): AtifResult {
  return { source_call_id: callId, content: toAtif(content, images) };
}

/** Returns the message of a step. */
export function chatMessageOf(step: AtifStep): ChatMessage {
  const content = fromAtif(step.message);
  if (step.source !== 'agent') return { role: step.source, content };
  const calls = (step.tool_calls ?? []).map(({ tool_call_id: id, function_name: name, arguments: args, extra }) => ({
    id,
    type: 'function' as const,
    function: { name, arguments: extra?.sampled_arguments ?? JSON.stringify(args) },
  }));
  return {
    role: 'assistant',
    content: textWithImageUrls(content),
    ...(step.reasoning_content == null ? {} : { reasoning_content: step.reasoning_content }),
    ...(calls.length === 0 ? {} : { tool_calls: calls }),
  };
}

/**
 * Returns an agent's observations as messages. Results of tool calls become messages of tools, and other observations become messages of the
 * user.
 */
export function observationsOf({ observation }: AtifStep): ChatMessage[] {
  return (observation?.results ?? []).map(({ source_call_id: id, content }) =>
    id == null
      ? { role: 'user', content: fromAtif(content ?? '') }
      : { role: 'tool', tool_call_id: id, content: fromAtif(content ?? '') },
  );
}

/** Returns the arguments of a call as the object that ATIF requires. When the sampled text is not a JSON object, it is kept in `extra`. */
function argumentsOf(text: string): Pick<Call, 'arguments' | 'extra'> {
  try {
    const value: unknown = JSON.parse(text);
    if (isRecord(value)) return { arguments: value };
  } catch {
    // The policy sampled a text that is not JSON.
  }
  return { arguments: {}, extra: { sampled_arguments: text } };
}

function toAtif(content: Content, images: Images): AtifContent {
  if (typeof content === 'string') return content;
  return content.map((part) => {
    if (part.type === 'text') return part;
    const place = images[part.image_url.url] ?? part.image_url.url;
    return { type: 'image', source: { media_type: mediaType(place), path: place } };
  });
}

function fromAtif(content: AtifContent): Content {
  if (typeof content === 'string') return content;
  return content.map(({ type, text, source }) =>
    type === 'image'
      ? { type: 'image_url', image_url: { url: source?.path ?? '' } }
      : { type: 'text', text: text ?? `[${type} at ${source?.path ?? 'unknown'}]` },
  );
}

function textWithImageUrls(content: Content): string {
  return typeof content === 'string'
    ? content
    : content.map((part) => (part.type === 'text' ? part.text : `[image at ${part.image_url.url}]`)).join('');
}

const MEDIA_TYPES: Readonly<Record<string, string>> = {
  jpeg: 'image/jpeg',
  jpg: 'image/jpeg',
  gif: 'image/gif',
  webp: 'image/webp',
};

function mediaType(place: string): string {
  return MEDIA_TYPES[/\.(\w+)$/.exec(place)?.[1]?.toLowerCase() ?? ''] ?? 'image/png';
}
