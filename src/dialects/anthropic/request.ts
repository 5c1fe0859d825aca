import { FloeError } from '../../core/errors.ts';
import { parseAs } from '../../core/parse.ts';
import type { AssistantMessage, ChatTool, ResponseFormat, SamplingAsked, ToolChoice } from '../../schema/index.ts';
import { labelCall } from '../call-kinds/label.ts';
import { Conversation } from '../conversation.ts';
import type { CallContext, CanonicalRequest } from '../dialect.ts';
import { addMessage, addSystem } from './history.ts';
import { countSchema, type ForeignRequest, outputFormatSchema, requestSchema } from './schema.ts';

/** Fields that would change what is sampled or shown to the model, and have no effect behind floe. */
const IGNORED_FIELDS = ['thinking', 'context_management', 'mcp_servers', 'container'] as const;

/** Stands for the reply that the messages continue; the proxy puts the recorded conversation there. */
const CONTINUED: AssistantMessage = { role: 'assistant', content: '' };

export function parseMessagesRequest(body: unknown, context: CallContext): CanonicalRequest {
  const canonical = canonicalOf(parseAs(requestSchema, body, 'messages request'), context);
  if (canonical.messages.at(-1)?.role === 'assistant') {
    throw new FloeError(
      'unsupported',
      `messages.${lastIndex(body)}: an assistant turn at the end cannot be continued (prefill); the last turn must be the user's`,
    );
  }
  return canonical;
}

export function parseMessagesCount(body: unknown, context: CallContext): CanonicalRequest {
  return canonicalOf(parseAs(countSchema, body, 'count_tokens request'), context);
}

function lastIndex(body: unknown): number {
  return (body as ForeignRequest).messages.length - 1;
}

function canonicalOf(request: ForeignRequest, { headers }: CallContext): CanonicalRequest {
  const conversation = new Conversation();
  const continues = request.thread?.type === 'continue' ? request.thread.previous_message_id : null;
  addSystem(conversation, request.system ?? '', 'system');
  if (continues !== null) conversation.assistant(CONTINUED);
  for (const [index, message] of request.messages.entries()) addMessage(conversation, message, `messages.${index}`);
  if (continues === null) conversation.noteCallIds();
  for (const field of IGNORED_FIELDS) {
    if (request[field] !== undefined && request[field] !== null) conversation.note(`${field} ignored`);
  }
  if (request.output_config?.effort != null) conversation.note('output_config.effort ignored');
  const tools = toolsOf(request, conversation);
  const responseFormat = responseFormatOf(request, conversation);
  const continuesTools = continues !== null && tools.length === 0;
  const toolChoice = toolChoiceOf(request.tool_choice, continuesTools ? null : tools, conversation);
  const { messages: all, adjusted, turnRefs } = conversation.finish();
  const messages = all.filter((message) => message !== CONTINUED);
  if (messages.length === 0) throw new FloeError('schema_violation', 'messages request: messages: there is no text');
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
    continues,
    ...(continuesTools ? { continuesTools } : {}),
    turnRefs,
    adjusted,
    ...labelCall({ headers, messages, tools, responseFormat }),
  };
}

/** A tool that the client runs is described by itself; any other type is known to the vendor alone. */
function toolsOf(request: ForeignRequest, conversation: Conversation): ChatTool[] {
  const tools: ChatTool[] = [];
  for (const [index, tool] of (request.tools ?? []).entries()) {
    if ((tool.type ?? 'custom') !== 'custom') {
      conversation.note(`hosted tool ${tool.type} dropped`);
      continue;
    }
    if (tool.name === undefined) {
      throw new FloeError('schema_violation', `messages request: tools.${index}.name: expected a string`);
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

/** `tools`: null where they are those of an earlier request. */
function toolChoiceOf(
  choice: ForeignRequest['tool_choice'],
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

function parallelOf(choice: ForeignRequest['tool_choice']): boolean | null {
  const disabled = choice?.disable_parallel_tool_use;
  return disabled === undefined || disabled === null ? null : !disabled;
}

function responseFormatOf(request: ForeignRequest, conversation: Conversation): ResponseFormat | undefined {
  const asked = request.output_config?.format ?? request.output_format ?? null;
  if (asked === null) return undefined;
  const format = outputFormatSchema.safeParse(asked);
  if (!format.success) {
    conversation.note('output format without a schema ignored');
    return undefined;
  }
  // This dialect has no name for a schema, and engines want one.
  return { type: 'json_schema', json_schema: { name: 'response', schema: format.data.schema } };
}

function samplingOf(request: ForeignRequest, responseFormat: ResponseFormat | undefined): SamplingAsked {
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
