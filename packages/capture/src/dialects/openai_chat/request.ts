import { FloeError, parseAs } from '@floe-rl/core';
import type { ChatTool, RequestedSampling, ResponseFormat, ToolChoice } from '@floe-rl/core/schema';
import { labelCall } from '../call-kinds/label.ts';
import { Conversation } from '../conversation.ts';
import { customFunction } from '../custom-tool.ts';
import type { CallContext, CanonicalRequest, ToolForm } from '../dialect.ts';
import { noteIgnoredFields } from '../ignored-fields.ts';
import { addMessage } from './history.ts';
import {
  functionSchema,
  HARMLESS_FIELDS,
  HARMLESS_STREAM_OPTIONS,
  REQUEST_NAME,
  requestSchema,
  streamOptionsSchema,
  type WireRequest,
} from './schema.ts';

export function parseChatRequest(body: unknown, { headers, callRules }: CallContext): CanonicalRequest {
  const request = parseAs(requestSchema, body, REQUEST_NAME);
  refuseUnsupported(request);
  const conversation = new Conversation();
  for (const [index, message] of request.messages.entries()) addMessage(conversation, message, `messages.${index}`);
  conversation.noteCallIds();
  noteIgnored(conversation, body as WireRequest);
  const toolForms = new Map<string, ToolForm>();
  const tools = toolsOf(request, toolForms, conversation);
  const toolChoice = toolChoiceOf(request, tools, conversation);
  const responseFormat = formatOf(request, conversation);
  const { messages, adjusted } = conversation.finish();
  return {
    model: request.model,
    messages,
    tools,
    toolForms,
    toolChoice,
    parallelToolCalls: request.parallel_tool_calls ?? null,
    samplingAsked: samplingOf(request, responseFormat),
    stream: request.stream ?? false,
    streamUsage: request.stream_options?.include_usage ?? false,
    previousCompletionId: null,
    adjusted,
    ...labelCall(callRules, { headers, messages, tools, responseFormat }),
  };
}

function refuseUnsupported(request: WireRequest): void {
  const { n, functions, function_call, continue_final_message, add_generation_prompt } = request;
  if ((n ?? 1) !== 1) throw new FloeError('unsupported', 'n: only one choice per request can be recorded');
  if (functions?.length || function_call != null) {
    const field = functions?.length ? 'functions' : 'function_call';
    throw new FloeError('unsupported', `${field}: the legacy form of tools; send tools and tool_choice instead`);
  }
  if (continue_final_message === true || add_generation_prompt === false) {
    const field = continue_final_message === true ? 'continue_final_message' : 'add_generation_prompt';
    throw new FloeError(
      'unsupported',
      `${field}: an assistant message cannot be continued; a reply is always a new message`,
    );
  }
}

function noteIgnored(conversation: Conversation, body: WireRequest): void {
  noteIgnoredFields(conversation, body, { used: requestSchema.shape, harmless: HARMLESS_FIELDS });
  const options = { used: streamOptionsSchema.shape, harmless: HARMLESS_STREAM_OPTIONS };
  noteIgnoredFields(conversation, body.stream_options, options, 'stream_options.');
  const declared = { used: functionSchema.shape, harmless: {} };
  for (const tool of body.tools ?? []) noteIgnoredFields(conversation, tool.function, declared, 'tools.function.');
}

function toolsOf(request: WireRequest, forms: Map<string, ToolForm>, conversation: Conversation): ChatTool[] {
  const tools: ChatTool[] = [];
  for (const tool of request.tools ?? []) {
    if (tool.type === 'custom' && tool.custom !== undefined) {
      if (tool.custom.format?.grammar) conversation.note('grammar of a custom tool moved to its description');
      forms.set(tool.custom.name, { kind: 'custom' });
      tools.push(customFunction(tool.custom));
      continue;
    }
    if (tool.type !== 'function' || tool.function === undefined) {
      conversation.note(`hosted tool ${tool.type} dropped`);
      continue;
    }
    const { name, description, parameters, strict } = tool.function;
    if (strict === true) conversation.note('strict of a tool ignored');
    tools.push({
      type: 'function',
      function: { name, ...(description ? { description } : {}), ...(parameters ? { parameters } : {}) },
    });
  }
  return tools;
}

function toolChoiceOf(request: WireRequest, tools: readonly ChatTool[], conversation: Conversation): ToolChoice | null {
  const choice = request.tool_choice ?? null;
  if (choice === null || typeof choice === 'string') return choice;
  switch (choice.type) {
    case 'function':
      return conversation.forcedTool(choice.function.name, tools);
    case 'custom':
      return conversation.forcedTool(choice.custom.name, tools);
    case 'allowed_tools':
      conversation.note('tool_choice.allowed_tools: all tools stay allowed');
      return choice.allowed_tools.mode;
  }
}

function formatOf(request: WireRequest, conversation: Conversation): ResponseFormat | undefined {
  const format = request.response_format ?? null;
  if (format === null || format.type === 'text') return undefined;
  if (format.type === 'json_object') return { type: 'json_object' };
  const { name, schema, strict } = format.json_schema ?? {};
  if (format.type !== 'json_schema' || !schema) {
    conversation.note(`response_format ${format.type} without a schema ignored`);
    return undefined;
  }
  // Engines require a name for the JSON schema, but clients may leave the name out.
  const named = { name: name || 'response', schema, ...(strict == null ? {} : { strict }) };
  return { type: 'json_schema', json_schema: named };
}

function samplingOf(request: WireRequest, responseFormat: ResponseFormat | undefined): RequestedSampling {
  const maxTokens = request.max_completion_tokens ?? request.max_tokens;
  const stop = typeof request.stop === 'string' ? [request.stop] : request.stop;
  return {
    ...(request.temperature == null ? {} : { temperature: request.temperature }),
    ...(request.top_p == null ? {} : { top_p: request.top_p }),
    ...(request.top_k == null ? {} : { top_k: request.top_k }),
    ...(maxTokens == null ? {} : { max_tokens: maxTokens }),
    ...(stop == null || stop.length === 0 ? {} : { stop }),
    ...(request.seed == null ? {} : { seed: request.seed }),
    ...(responseFormat === undefined ? {} : { response_format: responseFormat }),
  };
}
