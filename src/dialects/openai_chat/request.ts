import { z } from 'zod';
import { FloeError } from '../../core/errors.ts';
import { parseAs } from '../../core/parse.ts';
import type {
  AssistantMessage,
  ChatTool,
  Content,
  ContentPart,
  ResponseFormat,
  SamplingAsked,
  ToolCall,
  ToolChoice,
} from '../../schema/index.ts';
import { labelCall } from '../call-kind.ts';
import { Conversation, contentOf } from '../conversation.ts';
import type { CallContext, CanonicalRequest } from '../dialect.ts';

const textPartSchema = z.looseObject({ type: z.literal('text'), text: z.string() });
const refusalPartSchema = z.looseObject({ type: z.literal('refusal'), refusal: z.string() });
const imagePartSchema = z.looseObject({
  type: z.literal('image_url'),
  image_url: z.looseObject({ url: z.string() }),
});

const partSchema = z.discriminatedUnion('type', [textPartSchema, imagePartSchema, refusalPartSchema]);
const contentSchema = z.union([z.string(), z.array(partSchema)]).nullish();
type ForeignContent = z.output<typeof contentSchema>;

const toolCallSchema = z.looseObject({
  id: z.string(),
  function: z.looseObject({ name: z.string(), arguments: z.string() }),
});

const assistantSchema = z.looseObject({
  role: z.literal('assistant'),
  content: contentSchema,
  reasoning_content: z.string().nullish(),
  reasoning: z.string().nullish(),
  tool_calls: z.array(toolCallSchema).nullish(),
});

const messageSchema = z.discriminatedUnion('role', [
  z.looseObject({ role: z.literal('system'), content: contentSchema }),
  z.looseObject({ role: z.literal('developer'), content: contentSchema }),
  z.looseObject({ role: z.literal('user'), content: contentSchema }),
  assistantSchema,
  z.looseObject({ role: z.literal('tool'), tool_call_id: z.string(), content: contentSchema }),
]);

const functionToolSchema = z.looseObject({
  name: z.string(),
  description: z.string().nullish(),
  parameters: z.record(z.string(), z.unknown()).nullish(),
});

const toolSchema = z.looseObject({ type: z.string(), function: functionToolSchema.optional() });

const toolChoiceSchema = z.union([
  z.enum(['auto', 'none', 'required']),
  z.looseObject({ type: z.literal('function'), function: z.looseObject({ name: z.string() }) }),
]);

const formatSchema = z.discriminatedUnion('type', [
  z.looseObject({ type: z.literal('text') }),
  z.looseObject({ type: z.literal('json_object') }),
  z.looseObject({
    type: z.literal('json_schema'),
    json_schema: z.looseObject({
      name: z.string(),
      schema: z.record(z.string(), z.unknown()),
      strict: z.boolean().nullish(),
    }),
  }),
]);

const requestSchema = z.looseObject({
  model: z.string(),
  messages: z.array(messageSchema).min(1),
  tools: z.array(toolSchema).nullish(),
  tool_choice: toolChoiceSchema.nullish(),
  parallel_tool_calls: z.boolean().nullish(),
  stream: z.boolean().nullish(),
  stream_options: z.looseObject({ include_usage: z.boolean().nullish() }).nullish(),
  n: z.int().nullish(),
  temperature: z.number().nullish(),
  top_p: z.number().nullish(),
  top_k: z.number().nullish(),
  max_tokens: z.int().min(1).nullish(),
  max_completion_tokens: z.int().min(1).nullish(),
  stop: z.union([z.string(), z.array(z.string())]).nullish(),
  seed: z.int().nullish(),
  response_format: formatSchema.nullish(),
});
type ForeignRequest = z.output<typeof requestSchema>;

/** Fields that would change what is sampled or returned, and have no effect behind floe. */
const IGNORED_FIELDS = [
  'reasoning_effort',
  'logit_bias',
  'presence_penalty',
  'frequency_penalty',
  'logprobs',
  'top_logprobs',
  'functions',
  'function_call',
  'modalities',
  'audio',
  'prediction',
  'web_search_options',
  'chat_template_kwargs',
] as const;

export function parseChatRequest(body: unknown, { headers }: CallContext): CanonicalRequest {
  const request = parseAs(requestSchema, body, 'chat completion request');
  if ((request.n ?? 1) !== 1) throw new FloeError('unsupported', 'n: only one choice per request can be recorded');
  const conversation = new Conversation();
  for (const message of request.messages) addMessage(conversation, message);
  for (const field of IGNORED_FIELDS) {
    if (request[field] !== undefined && request[field] !== null) conversation.note(`${field} ignored`);
  }
  const tools = toolsOf(request, conversation);
  const samplingAsked = samplingOf(request);
  const { messages, adjusted } = conversation.finish();
  return {
    model: request.model,
    messages,
    tools,
    toolForms: new Map(),
    toolChoice: toolChoiceOf(request),
    parallelToolCalls: request.parallel_tool_calls ?? null,
    samplingAsked,
    stream: request.stream ?? false,
    streamUsage: request.stream_options?.include_usage ?? false,
    continues: null,
    adjusted,
    ...labelCall({ headers, messages, tools, responseFormat: samplingAsked.response_format }),
  };
}

function addMessage(conversation: Conversation, message: z.output<typeof messageSchema>): void {
  switch (message.role) {
    case 'system':
    case 'developer':
      if (message.role === 'developer') conversation.note('developer message sent as system');
      conversation.system(textOf(partsOf(message.content), conversation));
      return;
    case 'user':
      conversation.user(contentOf(partsOf(message.content)));
      return;
    case 'assistant':
      conversation.assistant(assistantOf(message, conversation));
      return;
    case 'tool':
      conversation.tool(message.tool_call_id, partsOf(message.content));
      return;
  }
}

function assistantOf(message: z.output<typeof assistantSchema>, conversation: Conversation): AssistantMessage {
  const content = textOf(partsOf(message.content), conversation);
  const reasoning = message.reasoning_content ?? message.reasoning ?? '';
  const calls = (message.tool_calls ?? []).map(
    (call): ToolCall => ({
      id: call.id,
      type: 'function',
      function: { name: call.function.name, arguments: call.function.arguments },
    }),
  );
  return {
    role: 'assistant',
    content: content === '' && calls.length > 0 ? null : content,
    ...(reasoning === '' ? {} : { reasoning_content: reasoning }),
    ...(calls.length === 0 ? {} : { tool_calls: calls }),
  };
}

function partsOf(content: ForeignContent): ContentPart[] {
  if (content === null || content === undefined) return [];
  if (typeof content === 'string') return [{ type: 'text', text: content }];
  return content.map((part): ContentPart => {
    if (part.type === 'image_url') return { type: 'image_url', image_url: { url: part.image_url.url } };
    return { type: 'text', text: part.type === 'text' ? part.text : part.refusal };
  });
}

function textOf(parts: readonly ContentPart[], conversation: Conversation): string {
  const texts = parts.filter((part) => part.type === 'text');
  if (texts.length < parts.length) conversation.note('image outside a user message dropped');
  const content: Content = contentOf(texts);
  return typeof content === 'string' ? content : '';
}

function toolsOf(request: ForeignRequest, conversation: Conversation): ChatTool[] {
  const tools: ChatTool[] = [];
  for (const tool of request.tools ?? []) {
    if (tool.type !== 'function' || tool.function === undefined) {
      conversation.note(`hosted tool ${tool.type} dropped`);
      continue;
    }
    const { name, description, parameters } = tool.function;
    tools.push({
      type: 'function',
      function: { name, ...(description ? { description } : {}), ...(parameters ? { parameters } : {}) },
    });
  }
  return tools;
}

function toolChoiceOf(request: ForeignRequest): ToolChoice | null {
  const choice = request.tool_choice ?? null;
  if (choice === null || typeof choice === 'string') return choice;
  return { type: 'function', function: { name: choice.function.name } };
}

function samplingOf(request: ForeignRequest): SamplingAsked {
  const format = formatOf(request);
  const maxTokens = request.max_completion_tokens ?? request.max_tokens;
  const stop = typeof request.stop === 'string' ? [request.stop] : request.stop;
  return {
    ...(request.temperature == null ? {} : { temperature: request.temperature }),
    ...(request.top_p == null ? {} : { top_p: request.top_p }),
    ...(request.top_k == null ? {} : { top_k: request.top_k }),
    ...(maxTokens == null ? {} : { max_tokens: maxTokens }),
    ...(stop == null || stop.length === 0 ? {} : { stop }),
    ...(request.seed == null ? {} : { seed: request.seed }),
    ...(format === null ? {} : { response_format: format }),
  };
}

function formatOf(request: ForeignRequest): ResponseFormat | null {
  const format = request.response_format ?? null;
  if (format === null || format.type === 'text') return null;
  if (format.type === 'json_object') return { type: 'json_object' };
  const { name, schema, strict } = format.json_schema;
  return { type: 'json_schema', json_schema: { name, schema, ...(strict == null ? {} : { strict }) } };
}
