import { z } from 'zod';
import { parseAs } from '../../core/parse.ts';
import { callHead } from '../call-head.ts';
import type { ParsedMessage } from '../chat-reply.ts';
import type { Exchange } from '../http.ts';
import { failAsVllm } from './call.ts';
import { chatPromptIds } from './chat-task.ts';
import { checkModel, type VllmContext } from './context.ts';
import { type ChatRequest, chatRequestSchema, parseRequest } from './request.ts';
import { type WholeReply, wholeReply } from './whole-reply.ts';

const blockSchema = z.looseObject({
  type: z.string(),
  text: z.string().optional(),
  thinking: z.string().optional(),
  id: z.string().optional(),
  name: z.string().optional(),
  input: z.record(z.string(), z.unknown()).optional(),
  tool_use_id: z.string().optional(),
  content: z.union([z.string(), z.array(z.looseObject({ type: z.string(), text: z.string().optional() }))]).optional(),
});
type Block = z.infer<typeof blockSchema>;
const contentSchema = z.union([z.string(), z.array(blockSchema)]);

const messagesSchema = z.looseObject({
  model: z.string(),
  messages: z.array(z.looseObject({ role: z.enum(['user', 'assistant']), content: contentSchema })).min(1),
  max_tokens: z.int().min(1),
  system: contentSchema.nullish(),
  tools: z
    .array(z.looseObject({ name: z.string(), description: z.string().nullish(), input_schema: z.unknown() }))
    .nullish(),
  stream: z.boolean().nullish(),
  stop_sequences: z.array(z.string().min(1)).nullish(),
  temperature: z.number().min(0).nullish(),
  top_p: z.number().gt(0).max(1).nullish(),
  top_k: z.int().min(-1).nullish(),
  chat_template_kwargs: z.unknown().optional(),
  kv_transfer_params: z.unknown().optional(),
  tool_choice: z.unknown().optional(),
  thinking: z.unknown().optional(),
});
const countSchema = messagesSchema.partial({ max_tokens: true });
type MessagesRequest = z.infer<typeof countSchema>;

/** POST /v1/messages: Anthropic's dialect as vLLM has it, which tells neither ids nor logprobs. */
export async function anthropicMessages(exchange: Exchange, context: VllmContext): Promise<void> {
  const request = parseRequest(context, messagesSchema, await exchange.body(), 'messages request');
  const head = callHead(exchange, context, {});
  if (failAsVllm(exchange, context, head, request.stream ?? false)) return;
  const reply = await wholeReply(exchange, context, {
    request: asChat(request),
    head,
    endpoint: '/v1/messages',
    callPrefix: 'toolu_',
  });
  const usage = reply.call.usage();
  const message = {
    id: `chatcmpl-${head.requestId}`,
    type: 'message',
    role: 'assistant',
    model: context.identity.model,
    content: contentBlocks(reply.message),
    stop_reason: stopReason(reply),
    stop_sequence: typeof reply.finish?.stop === 'string' ? reply.finish.stop : null,
    usage: { input_tokens: usage.prompt, output_tokens: usage.completion },
  };
  if (request.stream === true) await streamWhole(exchange, reply, message);
  else reply.call.sendJson(message);
}

/** POST /v1/messages/count_tokens */
export async function countMessageTokens(exchange: Exchange, context: VllmContext): Promise<void> {
  const request = parseRequest(context, countSchema, await exchange.body(), 'count tokens request');
  checkModel(context, request.model);
  exchange.json(200, { input_tokens: chatPromptIds(context, asChat(request)).length });
}

function asChat(request: MessagesRequest): ChatRequest {
  const { system } = request;
  const messages = request.messages.flatMap(({ role, content }) =>
    typeof content === 'string' ? [{ role, content }] : chatMessages(role, content),
  );
  return parseAs(
    chatRequestSchema,
    {
      model: request.model,
      messages:
        system === undefined || system === null ? messages : [{ role: 'system', content: textOf(system) }, ...messages],
      tools: request.tools?.map(({ name, description, input_schema: parameters }) => ({
        type: 'function',
        function: { name, description, parameters },
      })),
      max_tokens: request.max_tokens,
      stop: request.stop_sequences,
      temperature: request.temperature,
      top_p: request.top_p,
      top_k: request.top_k,
    },
    'messages request',
  );
}

/** Tool results become messages of their own, before the text that came with them. */
function chatMessages(role: 'user' | 'assistant', blocks: readonly Block[]): object[] {
  const results = blocks
    .filter(({ type }) => type === 'tool_result')
    .map(({ content }) => ({ role: 'tool', content: textOf(content ?? '') }));
  const text = blocks.filter(({ type }) => type === 'text');
  const calls = blocks.filter(({ type }) => type === 'tool_use');
  const reasoning = blocks.find(({ type }) => type === 'thinking')?.thinking;
  if (role === 'user') return text.length === 0 ? results : [...results, { role, content: textOf(text) }];
  return [
    {
      role,
      content: textOf(text),
      reasoning,
      tool_calls: calls.map(({ name, input }) => ({ function: { name: name ?? '', arguments: input ?? {} } })),
    },
  ];
}

function textOf(content: string | readonly { readonly text?: string | undefined }[]): string {
  return typeof content === 'string' ? content : content.map(({ text }) => text ?? '').join('\n');
}

function contentBlocks({ reasoning, content, calls }: ParsedMessage): Record<string, unknown>[] {
  return [
    ...(reasoning === null ? [] : [{ type: 'thinking', thinking: reasoning, signature: '' }]),
    ...(content === null || content === '' ? [] : [{ type: 'text', text: content }]),
    ...calls.map(({ id, name, argumentsText }) => ({
      type: 'tool_use',
      id,
      name,
      input: JSON.parse(argumentsText),
    })),
  ];
}

function stopReason({ finish, message }: WholeReply): string {
  if (finish?.reason === 'length') return 'max_tokens';
  if (typeof finish?.stop === 'string') return 'stop_sequence';
  return message.calls.length > 0 ? 'tool_use' : 'end_turn';
}

/** The events of a stream, each block in one piece. */
async function streamWhole(
  exchange: Exchange,
  reply: WholeReply,
  message: {
    readonly content: readonly Record<string, unknown>[];
    readonly stop_reason: string;
    readonly usage: object;
  },
): Promise<void> {
  exchange.beginStream();
  const send = (type: string, fields: object): Promise<void> =>
    exchange.write(`event: ${type}\ndata: ${JSON.stringify({ type, ...fields })}\n\n`);
  await send('message_start', { message: { ...message, content: [], stop_reason: null } });
  if (reply.call.breaksStream(reply.choice)) return;
  for (const [index, block] of message.content.entries()) {
    const { start, delta } = blockParts(block);
    await send('content_block_start', { index, content_block: start });
    await send('content_block_delta', { index, delta });
    await send('content_block_stop', { index });
  }
  await send('message_delta', {
    delta: { stop_reason: message.stop_reason, stop_sequence: null },
    usage: message.usage,
  });
  await send('message_stop', {});
  await reply.call.endStream();
}

function blockParts(block: Record<string, unknown>): { readonly start: object; readonly delta: object } {
  switch (block.type) {
    case 'thinking':
      return { start: { ...block, thinking: '' }, delta: { type: 'thinking_delta', thinking: block.thinking } };
    case 'tool_use': {
      const partial_json = JSON.stringify(block.input);
      return { start: { ...block, input: {} }, delta: { type: 'input_json_delta', partial_json } };
    }
    default:
      return { start: { ...block, text: '' }, delta: { type: 'text_delta', text: block.text } };
  }
}
