import { FloeError } from '../../core/errors.ts';
import { parseAs } from '../../core/parse.ts';
import type { AssistantMessage, RequestedSampling } from '../../schema/index.ts';
import { labelCall } from '../call-kinds/label.ts';
import { Conversation } from '../conversation.ts';
import type { CallContext, CanonicalRequest } from '../dialect.ts';
import { History } from './history.ts';
import { completionOfResponse } from './identifiers.ts';
import { ItemReferences } from './item-references.ts';
import { countSchema, REQUEST_NAME, requestSchema, violation, type WireRequest } from './schema.ts';
import { ToolTable } from './tools.ts';

/** Request fields that would change the sampling or the reply, and that floe ignores. */
const IGNORED_FIELDS = [
  'top_logprobs',
  'presence_penalty',
  'frequency_penalty',
  'logit_bias',
  'context_management',
  'max_tool_calls',
] as const;

/** Request fields that refer to objects on the vendor's servers, with the reason for refusing each. */
const REFUSED_FIELDS = {
  conversation: 'conversations are not stored; send the items themselves',
  prompt: 'prompt templates are not stored; send instructions and input',
} as const;

/** Placeholder for the reply that the input continues. The proxy replaces it with the recorded conversation. */
const PREVIOUS_REPLY: AssistantMessage = { role: 'assistant', content: '' };

export function parseResponsesRequest(body: unknown, context: CallContext): CanonicalRequest {
  return canonicalOf(parseAs(requestSchema, body, REQUEST_NAME), context);
}

export function parseResponsesCount(body: unknown, context: CallContext): CanonicalRequest {
  return canonicalOf(parseAs(countSchema, body, REQUEST_NAME), context);
}

function canonicalOf(request: WireRequest, { headers, recorded }: CallContext): CanonicalRequest {
  refuseStoredObjects(request);
  const conversation = new Conversation();
  const table = new ToolTable(conversation);
  const previousCompletionId = previousCompletionOf(request.previous_response_id);
  for (const [index, tool] of (request.tools ?? []).entries()) table.add(tool, `tools.${index}`);
  if (request.instructions) conversation.system(request.instructions);
  if (previousCompletionId !== null) conversation.assistant(PREVIOUS_REPLY);
  const history = new History(conversation, table, new ItemReferences(recorded));
  for (const [index, item] of itemsOf(request.input).entries()) history.add(item, `input.${index}`);
  history.close();
  if (previousCompletionId === null) conversation.noteCallIds();
  noteIgnored(request, conversation);
  const toolChoice = table.choice(request.tool_choice);
  const samplingAsked = samplingOf(request);
  const { messages: all, adjusted, claimedCompletions } = conversation.finish();
  const messages = all.filter((message) => message !== PREVIOUS_REPLY);
  if (messages.length === 0) throw violation('input', 'holds no message');
  const { tools } = table;
  const label = labelCall({ headers, messages, tools, responseFormat: samplingAsked.response_format });
  return {
    model: request.model ?? '',
    messages,
    tools,
    toolForms: table.forms,
    // A summary is text, so the model may call no tool. The tools stay in the prompt, so that it continues the recorded prompt.
    toolChoice: history.isCompaction && tools.length > 0 ? 'none' : toolChoice,
    parallelToolCalls: request.parallel_tool_calls ?? null,
    samplingAsked,
    stream: request.stream ?? false,
    streamUsage: true,
    previousCompletionId,
    replyShape: {
      previousResponse: request.previous_response_id || null,
      compaction: history.isCompaction,
      sealedThinking: request.include?.includes('reasoning.encrypted_content') ?? false,
    },
    claimedCompletions,
    adjusted,
    ...label,
    ...(history.isCompaction ? { callKind: 'compaction' as const } : {}),
  };
}

function refuseStoredObjects(request: WireRequest): void {
  for (const [field, reason] of Object.entries(REFUSED_FIELDS)) {
    const value = request[field];
    if (value !== undefined && value !== null) throw new FloeError('unsupported', `${field}: ${reason}`);
  }
  if (request.background === true)
    throw new FloeError('unsupported', 'background: not supported; send the request without it and wait for the reply');
}

function previousCompletionOf(previous: string | null | undefined): string | null {
  if (!previous) return null;
  const completionId = completionOfResponse(previous);
  if (completionId === null) {
    throw new FloeError('unsupported', 'previous_response_id: not the id of a response of this session');
  }
  return completionId;
}

function itemsOf(input: unknown): unknown[] {
  if (input === null || input === undefined) return [];
  if (typeof input === 'string') return [{ type: 'message', role: 'user', content: input }];
  if (Array.isArray(input)) return input;
  throw violation('input', 'expected a string or an array of items');
}

function noteIgnored(request: WireRequest, conversation: Conversation): void {
  for (const field of IGNORED_FIELDS) {
    if (request[field] !== undefined && request[field] !== null) conversation.note(`${field} ignored`);
  }
  if (request.reasoning?.effort != null) conversation.note('reasoning.effort ignored');
  if (request.text?.verbosity != null) conversation.note('text.verbosity ignored');
  if (request.truncation === 'auto') conversation.note('truncation ignored');
}

function samplingOf({ temperature, top_p, max_output_tokens, text }: WireRequest): RequestedSampling {
  return {
    ...(temperature == null ? {} : { temperature }),
    ...(top_p == null ? {} : { top_p }),
    ...(max_output_tokens == null ? {} : { max_tokens: max_output_tokens }),
    ...formatOf(text?.format),
  };
}

function formatOf(format: NonNullable<WireRequest['text']>['format']): Pick<RequestedSampling, 'response_format'> {
  if (format === null || format === undefined || format.type === 'text') return {};
  if (format.type === 'json_object') return { response_format: { type: 'json_object' } };
  const { name, schema, strict } = format;
  return {
    response_format: { type: 'json_schema', json_schema: { name, schema, ...(strict == null ? {} : { strict }) } },
  };
}
