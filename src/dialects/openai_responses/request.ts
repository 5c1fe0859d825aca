import { FloeError } from '../../core/errors.ts';
import { parseAs } from '../../core/parse.ts';
import type { AssistantMessage, SamplingAsked } from '../../schema/index.ts';
import { labelCall } from '../call-kinds/label.ts';
import { Conversation } from '../conversation.ts';
import type { CallContext, CanonicalRequest } from '../dialect.ts';
import { History } from './history.ts';
import { completionOfResponse } from './identifiers.ts';
import { ItemReferences } from './item-references.ts';
import { countSchema, type ForeignRequest, requestSchema } from './schema.ts';
import { ToolTable } from './tools.ts';
import { violation, WHAT } from './violation.ts';

/** Fields that would change what is sampled or returned, and have no effect behind floe. */
const IGNORED_FIELDS = [
  'top_logprobs',
  'presence_penalty',
  'frequency_penalty',
  'logit_bias',
  'context_management',
  'max_tool_calls',
] as const;

/** Fields that ask for what only the vendor's servers hold. */
const REFUSED_FIELDS = {
  conversation: 'conversations are not stored; send the items themselves',
  prompt: 'prompt templates are not stored; send instructions and input',
} as const;

/** Stands for the reply that the input continues; the proxy puts the recorded conversation there. */
const CONTINUED: AssistantMessage = { role: 'assistant', content: '' };

export function parseResponsesRequest(body: unknown, context: CallContext): CanonicalRequest {
  return canonicalOf(parseAs(requestSchema, body, WHAT), context);
}

export function parseResponsesCount(body: unknown, context: CallContext): CanonicalRequest {
  return canonicalOf(parseAs(countSchema, body, WHAT), context);
}

function canonicalOf(request: ForeignRequest, { headers, recorded }: CallContext): CanonicalRequest {
  refuseStored(request);
  const conversation = new Conversation();
  const table = new ToolTable(conversation);
  const continues = continuedBy(request.previous_response_id);
  for (const [index, tool] of (request.tools ?? []).entries()) table.add(tool, `tools.${index}`);
  if (request.instructions) conversation.system(request.instructions);
  if (continues !== null) conversation.assistant(CONTINUED);
  const history = new History(conversation, table, new ItemReferences(recorded));
  for (const [index, item] of itemsOf(request.input).entries()) history.add(item, `input.${index}`);
  history.close();
  if (continues === null) conversation.noteCallIds();
  noteIgnored(request, conversation);
  const toolChoice = table.choice(request.tool_choice);
  const samplingAsked = samplingOf(request);
  const { messages: all, adjusted, turnRefs } = conversation.finish();
  const messages = all.filter((message) => message !== CONTINUED);
  if (messages.length === 0) throw violation('input', 'holds no message');
  const { tools } = table;
  const label = labelCall({ headers, messages, tools, responseFormat: samplingAsked.response_format });
  return {
    model: request.model ?? '',
    messages,
    tools,
    toolForms: table.forms,
    // A summary is text; the tools stay in the prompt, so that it goes on from the turns before it.
    toolChoice: history.compaction && tools.length > 0 ? 'none' : toolChoice,
    parallelToolCalls: request.parallel_tool_calls ?? null,
    samplingAsked,
    stream: request.stream ?? false,
    streamUsage: true,
    continues,
    replyShape: {
      previousResponse: request.previous_response_id || null,
      compaction: history.compaction,
      sealedThinking: request.include?.includes('reasoning.encrypted_content') ?? false,
    },
    turnRefs,
    adjusted,
    ...label,
    ...(history.compaction ? { callKind: 'compaction' as const } : {}),
  };
}

function refuseStored(request: ForeignRequest): void {
  for (const [field, reason] of Object.entries(REFUSED_FIELDS)) {
    const value = request[field];
    if (value !== undefined && value !== null) throw new FloeError('unsupported', `${field}: ${reason}`);
  }
  if (request.background === true)
    throw new FloeError('unsupported', 'background: replies are given while they are asked for');
}

function continuedBy(previous: string | null | undefined): string | null {
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

function noteIgnored(request: ForeignRequest, conversation: Conversation): void {
  for (const field of IGNORED_FIELDS) {
    if (request[field] !== undefined && request[field] !== null) conversation.note(`${field} ignored`);
  }
  if (request.reasoning?.effort != null) conversation.note('reasoning.effort ignored');
  if (request.text?.verbosity != null) conversation.note('text.verbosity ignored');
  if (request.truncation === 'auto') conversation.note('truncation ignored');
}

function samplingOf({ temperature, top_p, max_output_tokens, text }: ForeignRequest): SamplingAsked {
  return {
    ...(temperature == null ? {} : { temperature }),
    ...(top_p == null ? {} : { top_p }),
    ...(max_output_tokens == null ? {} : { max_tokens: max_output_tokens }),
    ...formatOf(text?.format),
  };
}

function formatOf(format: NonNullable<ForeignRequest['text']>['format']): Pick<SamplingAsked, 'response_format'> {
  if (format === null || format === undefined || format.type === 'text') return {};
  if (format.type === 'json_object') return { response_format: { type: 'json_object' } };
  const { name, schema, strict } = format;
  return {
    response_format: { type: 'json_schema', json_schema: { name, schema, ...(strict == null ? {} : { strict }) } },
  };
}
