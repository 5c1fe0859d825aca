import { FloeError, parseAs } from '@floe-rl/core';
import type { AssistantMessage, ChatTool, RequestedSampling, ResponseFormat, ToolChoice } from '@floe-rl/core/schema';
import { labelCall } from '../call-kinds/label.ts';
import { Conversation } from '../conversation.ts';
import type { CallContext, CanonicalRequest } from '../dialect.ts';
import { noteIgnoredFields } from '../ignored-fields.ts';
import { addMessage, addSystem } from './history.ts';
import {
  countSchema,
  HARMLESS_FIELDS,
  HARMLESS_TOOL_FIELDS,
  outputConfigSchema,
  outputFormatSchema,
  REQUEST_NAME,
  requestSchema,
  toolSchema,
  type WireRequest,
} from './schema.ts';

/**
 * Placeholder for the earlier reply that the new messages continue. It prevents system text at the start of the new messages from being
 * merged into the system prompt. It is removed after the translation, and the proxy inserts the recorded conversation instead.
 */
const PREVIOUS_REPLY: AssistantMessage = { role: 'assistant', content: '' };

export function parseMessagesRequest(body: unknown, context: CallContext): CanonicalRequest {
  const canonical = canonicalOf(parseAs(requestSchema, body, REQUEST_NAME), body, context);
  if (canonical.messages.at(-1)?.role === 'assistant') {
    throw new FloeError(
      'unsupported',
      `messages.${lastIndex(body)}: an assistant message at the end cannot be continued (prefill); the last message must be the user's`,
    );
  }
  return canonical;
}

export function parseMessagesCount(body: unknown, context: CallContext): CanonicalRequest {
  return canonicalOf(parseAs(countSchema, body, 'count_tokens request'), body, context);
}

function lastIndex(body: unknown): number {
  return (body as WireRequest).messages.length - 1;
}

/**
 * Converts a parsed request to floe's internal form. `body` is the request before parsing, which still contains the fields that have no
 * schema.
 */
function canonicalOf(request: WireRequest, body: unknown, { headers, callRules }: CallContext): CanonicalRequest {
  const conversation = new Conversation();
  const previousCompletionId = request.thread?.type === 'continue' ? request.thread.previous_message_id : null;
  addSystem(conversation, request.system ?? '', 'system');
  if (previousCompletionId !== null) conversation.assistant(PREVIOUS_REPLY);
  for (const [index, message] of request.messages.entries()) addMessage(conversation, message, `messages.${index}`);
  if (previousCompletionId === null) conversation.noteCallIds();
  noteIgnored(conversation, body as WireRequest);
  const tools = toolsOf(request, conversation);
  const responseFormat = responseFormatOf(request, conversation);
  const inheritsTools = previousCompletionId !== null && tools.length === 0;
  const toolChoice = toolChoiceOf(request.tool_choice, inheritsTools ? null : tools, conversation);
  const { messages: all, adjusted, claimedCompletions } = conversation.finish();
  const messages = all.filter((message) => message !== PREVIOUS_REPLY);
  if (messages.length === 0) throw new FloeError('schema_violation', `${REQUEST_NAME}: messages: there is no text`);
  return {
    model: request.model,
    messages,
    tools,
    toolForms: new Map(),
    toolChoice,
    parallelToolCalls: parallelOf(request.tool_choice),
    samplingAsked: samplingOf(request, responseFormat),
    stream: request.stream ?? false,
    streamUsage: true,
    previousCompletionId,
    ...(inheritsTools ? { inheritsTools } : {}),
    claimedCompletions,
    adjusted,
    ...labelCall(callRules, { headers, messages, tools, responseFormat }),
  };
}

function noteIgnored(conversation: Conversation, body: WireRequest): void {
  noteIgnoredFields(conversation, body, { used: requestSchema.shape, harmless: HARMLESS_FIELDS });
  const output = { used: outputConfigSchema.shape, harmless: {} };
  noteIgnoredFields(conversation, body.output_config, output, 'output_config.');
  const tool = { used: toolSchema.shape, harmless: HARMLESS_TOOL_FIELDS };
  for (const declared of body.tools ?? []) {
    if ((declared.type ?? 'custom') === 'custom') noteIgnoredFields(conversation, declared, tool, 'tools.');
  }
}

/** Translates the tools that the client runs. Tools of other types run on the servers of the vendor and are dropped. */
function toolsOf(request: WireRequest, conversation: Conversation): ChatTool[] {
  const tools: ChatTool[] = [];
  for (const [index, tool] of (request.tools ?? []).entries()) {
    if ((tool.type ?? 'custom') !== 'custom') {
      conversation.note(`hosted tool ${tool.type} dropped`);
      continue;
    }
    if (tool.name === undefined) {
      throw new FloeError('schema_violation', `${REQUEST_NAME}: tools.${index}.name: expected a string`);
    }
    if (tool.defer_loading === true) conversation.note('defer_loading ignored: the tool is sent in full');
    if (tool.strict === true) conversation.note('strict of a tool ignored');
    tools.push({
      type: 'function',
      function: {
        name: tool.name,
        ...(tool.description ? { description: tool.description } : {}),
        ...(tool.input_schema ? { parameters: tool.input_schema } : {}),
      },
    });
  }
  return tools;
}

/** Translates the request's tool choice. `tools` is `null` when the request uses the tools of an earlier request. */
function toolChoiceOf(
  choice: WireRequest['tool_choice'],
  tools: readonly ChatTool[] | null,
  conversation: Conversation,
): ToolChoice | null {
  if (choice === null || choice === undefined) return null;
  switch (choice.type) {
    case 'auto':
    case 'none':
      return choice.type;
    case 'any':
      return 'required';
    case 'tool':
      return tools === null
        ? { type: 'function', function: { name: choice.name } }
        : conversation.forcedTool(choice.name, tools);
  }
}

function parallelOf(choice: WireRequest['tool_choice']): boolean | null {
  const disabled = choice?.disable_parallel_tool_use;
  return disabled === undefined || disabled === null ? null : !disabled;
}

function responseFormatOf(request: WireRequest, conversation: Conversation): ResponseFormat | undefined {
  const requested = request.output_config?.format ?? request.output_format ?? null;
  if (requested === null) return undefined;
  const format = outputFormatSchema.safeParse(requested);
  if (!format.success) {
    conversation.note('output format without a schema ignored');
    return undefined;
  }
  // Engines require a name for the JSON schema of a reply. Anthropic requests have no field for the name, so it is fixed.
  return { type: 'json_schema', json_schema: { name: 'response', schema: format.data.schema } };
}

function samplingOf(request: WireRequest, responseFormat: ResponseFormat | undefined): RequestedSampling {
  const { temperature, top_p, top_k, max_tokens, stop_sequences } = request;
  return {
    ...(temperature == null ? {} : { temperature }),
    ...(top_p == null ? {} : { top_p }),
    ...(top_k == null ? {} : { top_k }),
    ...(max_tokens == null ? {} : { max_tokens }),
    ...(stop_sequences == null || stop_sequences.length === 0 ? {} : { stop: stop_sequences }),
    ...(responseFormat === undefined ? {} : { response_format: responseFormat }),
  };
}
