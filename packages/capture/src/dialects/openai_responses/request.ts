import { FloeError, parseAs } from '@floe-rl/core';
import type { AssistantMessage, RequestedSampling } from '@floe-rl/core/schema';
import { labelCall } from '../call-kinds/label.ts';
import { Conversation } from '../conversation.ts';
import type { CallContext, CanonicalRequest } from '../dialect.ts';
import { type HarmlessFields, noteIgnoredFields } from '../ignored-fields.ts';
import { History } from './history.ts';
import { completionOfResponse } from './identifiers.ts';
import { ItemReferences } from './item-references.ts';
import {
  countSchema,
  HARMLESS_FIELDS,
  HARMLESS_REASONING_FIELDS,
  HARMLESS_STREAM_OPTIONS,
  REQUEST_NAME,
  requestSchema,
  TEXT_FIELDS,
  violation,
  type WireRequest,
} from './schema.ts';
import { ToolTable } from './tools.ts';

/** Request fields that refer to objects on the servers of the vendor, with the reason why floe refuses each. */
const REFUSED_FIELDS = {
  conversation: 'conversations are not stored; send the items themselves',
  prompt: 'prompt templates are not stored; send instructions and input',
} as const;

/**
 * Placeholder for the earlier reply that the input continues. It prevents system text at the start of the input from being merged into the
 * system prompt. It is removed after the translation, and the proxy inserts the recorded conversation instead.
 */
const PREVIOUS_REPLY: AssistantMessage = { role: 'assistant', content: '' };

export function parseResponsesRequest(body: unknown, context: CallContext): CanonicalRequest {
  return canonicalOf(parseAs(requestSchema, body, REQUEST_NAME), context);
}

export function parseResponsesCount(body: unknown, context: CallContext): CanonicalRequest {
  return canonicalOf(parseAs(countSchema, body, REQUEST_NAME), context);
}

function canonicalOf(request: WireRequest, { headers, callRules, recorded }: CallContext): CanonicalRequest {
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
  const responseFormat = samplingAsked.response_format;
  const label = labelCall(callRules, { headers, messages, tools, responseFormat });
  return {
    model: request.model ?? '',
    messages,
    tools,
    toolForms: table.forms,
    // The reply to a compaction request is a text, so the model may not call tools. The tools stay in the prompt, so that the prompt starts
    // with the recorded prompt of the conversation.
    toolChoice: history.isCompaction && tools.length > 0 ? 'none' : toolChoice,
    parallelToolCalls: request.parallel_tool_calls ?? null,
    samplingAsked,
    stream: request.stream ?? false,
    streamUsage: true,
    previousCompletionId,
    replyShape: {
      previousResponse: request.previous_response_id || null,
      compaction: history.isCompaction,
      sealedThinking: request.include?.includes(SEALED_THINKING) ?? false,
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

/** Request fields that other code of this file reads without a schema. */
const FIELDS_WITHOUT_SCHEMA = { ...REFUSED_FIELDS, stream_options: true };

/** The value of `include` that floe supports. */
const SEALED_THINKING = 'reasoning.encrypted_content';

function noteIgnored(request: WireRequest, conversation: Conversation): void {
  const used = { ...countSchema.shape, ...FIELDS_WITHOUT_SCHEMA };
  noteIgnoredFields(conversation, request, { used, harmless: HARMLESS_FIELDS });
  const note = (field: string, fields: object, harmless: HarmlessFields): void =>
    noteIgnoredFields(conversation, request[field], { used: fields, harmless }, `${field}.`);
  note('reasoning', {}, HARMLESS_REASONING_FIELDS);
  note('text', TEXT_FIELDS, {});
  note('stream_options', {}, HARMLESS_STREAM_OPTIONS);
  for (const value of request.include ?? []) {
    if (value !== SEALED_THINKING) conversation.note(`include ${value} ignored`);
  }
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
