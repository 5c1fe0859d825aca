import type { ToolChoice } from '../../schema/index.ts';
import type { CanonicalReply, CanonicalRequest, ReplyHead } from '../dialect.ts';
import { responseId } from './identifiers.ts';
import { isCustom, isCut, itemsOf } from './reply-items.ts';

export function encodeResponse(reply: CanonicalReply, request: CanonicalRequest): string {
  return JSON.stringify(finishedResponse(reply, request));
}

/** A response that has begun. The request's tools and instructions are not repeated: they would be most of every reply. */
export function openResponse(head: ReplyHead, request: CanonicalRequest): object {
  return {
    id: responseId(head.completionId),
    object: 'response',
    created_at: Math.floor(head.createdMs / 1000),
    status: 'in_progress',
    error: null,
    incomplete_details: null,
    instructions: null,
    max_output_tokens: request.samplingAsked.max_tokens ?? null,
    metadata: {},
    model: head.model,
    output: [],
    parallel_tool_calls: request.parallelToolCalls ?? true,
    previous_response_id: request.replyShape?.previousResponse ?? null,
    temperature: null,
    tool_choice: foreignChoice(request.toolChoice, request),
    tools: [],
    top_p: null,
    truncation: 'disabled',
    usage: null,
  };
}

export function finishedResponse(reply: CanonicalReply, request: CanonicalRequest): object {
  const cut = isCut(reply);
  return {
    ...openResponse(reply, request),
    status: cut ? 'incomplete' : 'completed',
    incomplete_details: cut ? { reason: 'max_output_tokens' } : null,
    output: itemsOf(reply, request),
    usage: usageOf(reply),
  };
}

function foreignChoice(choice: ToolChoice | null, request: CanonicalRequest): unknown {
  if (choice === null || typeof choice === 'string') return choice ?? 'auto';
  const { name } = choice.function;
  const type = isCustom(name, request) ? 'custom' : 'function';
  return { type, name: request.toolForms.get(name)?.name ?? name };
}

/** The engine does not tell how many tokens were thinking. */
function usageOf(reply: CanonicalReply): object {
  const { prompt_tokens, completion_tokens, cached_tokens } = reply.usage;
  return {
    input_tokens: prompt_tokens,
    input_tokens_details: { cached_tokens: cached_tokens ?? 0 },
    output_tokens: completion_tokens,
    output_tokens_details: { reasoning_tokens: 0 },
    total_tokens: prompt_tokens + completion_tokens,
  };
}
