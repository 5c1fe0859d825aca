import { z } from 'zod';
import { FloeError } from '../../core/errors.ts';
import { parseAs } from '../../core/parse.ts';
import { callHead } from '../call-head.ts';
import type { ParsedMessage } from '../chat-reply.ts';
import type { Exchange } from '../http.ts';
import { failAsVllm } from './call.ts';
import type { VllmContext } from './context.ts';
import { type ChatRequest, chatRequestSchema, parseRequest } from './request.ts';
import { wholeReply } from './whole-reply.ts';

const textSchema = z.union([z.string(), z.array(z.looseObject({ type: z.string(), text: z.string().optional() }))]);

const itemSchema = z.looseObject({
  type: z.enum(['message', 'function_call', 'function_call_output', 'reasoning']).default('message'),
  role: z.enum(['system', 'developer', 'user', 'assistant']).optional(),
  content: textSchema.nullish(),
  name: z.string().optional(),
  arguments: z.string().optional(),
  output: textSchema.optional(),
});
type Item = z.infer<typeof itemSchema>;

const responsesSchema = z.looseObject({
  model: z.string().nullish(),
  input: z.union([z.string(), z.array(itemSchema).min(1)]),
  instructions: z.string().nullish(),
  tools: z
    .array(
      z.looseObject({
        type: z.literal('function'),
        name: z.string(),
        description: z.string().nullish(),
        parameters: z.unknown().optional(),
      }),
    )
    .nullish(),
  max_output_tokens: z.int().min(1).nullish(),
  temperature: z.number().min(0).nullish(),
  top_p: z.number().gt(0).max(1).nullish(),
  stream: z.boolean().nullish(),
  request_id: z.string().nullish(),
  include: z.unknown().optional(),
  parallel_tool_calls: z.unknown().optional(),
  reasoning: z.unknown().optional(),
  text: z.unknown().optional(),
});
type ResponsesRequest = z.infer<typeof responsesSchema>;

/** POST /v1/responses, which tells neither ids nor logprobs. */
export async function openaiResponses(exchange: Exchange, context: VllmContext): Promise<void> {
  const request = parseRequest(context, responsesSchema, await exchange.body(), 'responses request');
  const head = callHead(exchange, context, request);
  if (failAsVllm(exchange, context, head, request.stream ?? false)) return;
  if (request.stream === true) {
    throw new FloeError('engine_rejected', 'stream is not supported by the simulated engine on this route');
  }
  const chat = asChat(request);
  const reply = await wholeReply(exchange, context, {
    request: chat,
    head,
    endpoint: '/v1/responses',
    callPrefix: 'call_',
  });
  const usage = reply.call.usage();
  const cut = reply.finish?.reason === 'length';
  reply.call.sendJson({
    id: `resp_${head.requestId}`,
    object: 'response',
    created_at: reply.call.created,
    status: cut ? 'incomplete' : 'completed',
    incomplete_details: cut ? { reason: 'max_output_tokens' } : null,
    model: context.identity.model,
    output: outputItems(head.requestId, reply.message),
    usage: {
      input_tokens: usage.prompt,
      output_tokens: usage.completion,
      total_tokens: usage.prompt + usage.completion,
    },
  });
}

function asChat(request: ResponsesRequest): ChatRequest {
  const { input, instructions } = request;
  const messages = typeof input === 'string' ? [{ role: 'user', content: input }] : chatMessages(input);
  return parseAs(
    chatRequestSchema,
    {
      model: request.model,
      messages: instructions ? [{ role: 'system', content: instructions }, ...messages] : messages,
      tools: request.tools?.map(({ name, description, parameters }) => ({
        type: 'function',
        function: { name, description, parameters },
      })),
      max_tokens: request.max_output_tokens,
      temperature: request.temperature,
      top_p: request.top_p,
    },
    'responses request',
  );
}

/** The items of one assistant turn become one message. */
function chatMessages(items: readonly Item[]): object[] {
  const messages: { role: string; content: string; reasoning?: string; tool_calls?: object[] }[] = [];
  const assistant = (): (typeof messages)[number] => {
    const last = messages.at(-1);
    if (last?.role === 'assistant') return last;
    const fresh = { role: 'assistant', content: '' };
    messages.push(fresh);
    return fresh;
  };
  for (const item of items) {
    const text = textOf(item.content ?? item.output ?? '');
    if (item.type === 'function_call_output') messages.push({ role: 'tool', content: text });
    else if (item.type === 'reasoning') assistant().reasoning = text;
    else if (item.type === 'function_call') {
      const call = { function: { name: item.name ?? '', arguments: item.arguments ?? '{}' } };
      const turn = assistant();
      turn.tool_calls = [...(turn.tool_calls ?? []), call];
    } else if (item.role === 'assistant') assistant().content += text;
    else messages.push({ role: item.role ?? 'user', content: text });
  }
  return messages;
}

function textOf(content: z.infer<typeof textSchema>): string {
  return typeof content === 'string' ? content : content.map(({ text }) => text ?? '').join('\n');
}

function outputItems(requestId: string, { reasoning, content, calls }: ParsedMessage): object[] {
  const parts = (type: string, text: string): object[] => [{ type, text, annotations: [], logprobs: null }];
  const status = 'completed';
  return [
    ...(reasoning === null
      ? []
      : [
          {
            type: 'reasoning',
            id: `rs_${requestId}`,
            summary: [],
            content: [{ type: 'reasoning_text', text: reasoning }],
          },
        ]),
    ...(content === null || content === ''
      ? []
      : [
          {
            type: 'message',
            id: `msg_${requestId}`,
            role: 'assistant',
            status,
            content: parts('output_text', content),
          },
        ]),
    ...calls.map(({ id, name, argumentsText }) => ({
      type: 'function_call',
      id: `fc_${id}`,
      call_id: id,
      name,
      arguments: argumentsText,
      status,
    })),
  ];
}
