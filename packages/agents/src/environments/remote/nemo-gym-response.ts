import {
  type AssistantMessage,
  type ChatMessage,
  type ChatTool,
  type ContentPart,
  contentText,
} from '@floe-rl/core/schema';
import { z } from 'zod';

/** Names of routes of a resources server, which no tool may have. */
const ROUTES = ['seed_session', 'verify', 'aggregate_metrics', 'reset', 'step', 'close', 'mcp', 'stats'];

// The server gets each object as it is in the row, with the fields that are not named here.
const partSchema = z.union([
  z.looseObject({ type: z.enum(['input_text', 'output_text', 'text']), text: z.string() }),
  z.looseObject({ type: z.literal('input_image'), image_url: z.string() }),
]);
const itemSchema = z.union([
  z.looseObject({ type: z.literal('function_call'), call_id: z.string(), name: z.string(), arguments: z.string() }),
  z.looseObject({ type: z.literal('function_call_output'), call_id: z.string(), output: z.string() }),
  z.looseObject({
    type: z.literal('message').optional(),
    role: z.enum(['system', 'developer', 'user', 'assistant']),
    content: z.union([z.string(), z.array(partSchema)]),
  }),
]);
type Item = z.output<typeof itemSchema>;

const toolSchema = z.looseObject({
  type: z.literal('function'),
  name: z
    .string()
    .regex(/^[A-Za-z0-9_-]{1,128}$/)
    .refine((name) => !ROUTES.includes(name), 'is the name of a route of the server'),
  description: z.string().nullish(),
  parameters: z.record(z.string(), z.unknown()).nullish(),
});

/** A row of a dataset of NeMo Gym: the request for a model in OpenAI's Responses form, and what the server grades by. */
export const rowSchema = z.looseObject({
  responses_create_params: z.looseObject({
    input: z.union([z.string(), z.array(itemSchema)]),
    instructions: z.string().nullish(),
    tools: z.array(toolSchema).default([]),
  }),
});
export type Row = z.output<typeof rowSchema>;

/** Returns the messages and the tools of a row, as the policy gets them. */
export function requestOf({ responses_create_params: { input, instructions, tools } }: Row): {
  readonly messages: ChatMessage[];
  readonly tools: ChatTool[];
} {
  const items: readonly Item[] = typeof input === 'string' ? [{ role: 'user', content: input }] : input;
  const system = instructions ?? '';
  return {
    messages: [
      ...(system === '' ? [] : [{ role: 'system' as const, content: system }]),
      ...items.map((item) => chatMessageOf(item)),
    ],
    tools: tools.map(({ name, description, parameters }) => ({
      type: 'function',
      function: { name, description: description ?? '', parameters: parameters ?? { type: 'object', properties: {} } },
    })),
  };
}

function chatMessageOf(item: Item): ChatMessage {
  if (item.type === 'function_call') {
    const { call_id: id, name, arguments: json } = item;
    const call = { id, type: 'function' as const, function: { name, arguments: json } };
    return { role: 'assistant', content: null, tool_calls: [call] };
  }
  if (item.type === 'function_call_output') return { role: 'tool', tool_call_id: item.call_id, content: item.output };
  const { content, role } = item;
  const parts = typeof content === 'string' ? content : content.map(partOf);
  if (role === 'assistant') return { role, content: contentText(parts) };
  return { role: role === 'developer' ? 'system' : role, content: parts };
}

function partOf(part: z.output<typeof partSchema>): ContentPart {
  if (part.type === 'input_image') return { type: 'image_url', image_url: { url: part.image_url } };
  return { type: 'text', text: part.text };
}

/** Returns a reply of the policy as items of OpenAI's Responses form. `index` is its number in the episode. */
export function itemsOf(reply: AssistantMessage, index: number): object[] {
  const { content, reasoning_content: reasoning = '', tool_calls: calls = [] } = reply;
  const items: object[] = [];
  if (reasoning !== '') {
    items.push({ type: 'reasoning', id: `rs_${index}`, summary: [{ type: 'summary_text', text: reasoning }] });
  }
  if ((content ?? '') !== '' || calls.length === 0) {
    const text = { type: 'output_text', text: content ?? '', annotations: [] };
    items.push({ type: 'message', id: `msg_${index}`, role: 'assistant', status: 'completed', content: [text] });
  }
  for (const { id, function: called } of calls) {
    items.push({ type: 'function_call', id, call_id: id, status: 'completed', ...called });
  }
  return items;
}

/** Returns the items that answer the calls of a reply. */
export function outputItemsOf(messages: readonly ChatMessage[]): object[] {
  return messages.flatMap((message) =>
    message.role === 'tool'
      ? [{ type: 'function_call_output', call_id: message.tool_call_id, output: asText(message.content) }]
      : [],
  );
}

function asText(content: ChatMessage['content']): string {
  return contentText(content);
}

/** Returns a response in OpenAI's form, as resources servers grade it. `now` is the Unix time in seconds. */
export function responseOf(row: Row, output: readonly object[], now: number): object {
  const { tools } = row.responses_create_params;
  return {
    id: 'resp_floe',
    object: 'response',
    created_at: now,
    model: 'policy',
    status: 'completed',
    output,
    parallel_tool_calls: true,
    tool_choice: 'auto',
    tools: tools.map((tool) => ({ strict: false, ...tool, parameters: tool.parameters ?? null })),
  };
}
