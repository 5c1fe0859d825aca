import type { LogprobsMode } from '../context.ts';
import { BLOCK_TOKENS } from '../prefix-cache.ts';
import type { CallDelta, MessageDelta, ParsedCall, ParsedMessage } from '../reply-parser.ts';
import type { TokenUsage } from '../sampled-call.ts';
import type { SpecialTokens } from '../vocabulary.ts';
import { type WireLogprob, type WireToken, wireLogprob } from '../wire-choice.ts';
import type { ChatRequest } from './request.ts';

/** Counts the tokens of a reply's thinking, not including the delimiters of the thinking block. */
export class ThinkingTokenCounter {
  tokens = 0;
  private readonly special: SpecialTokens;
  private open: boolean;

  constructor(special: SpecialTokens, open: boolean) {
    this.special = special;
    this.open = open;
  }

  count(sampled: readonly { readonly id: number }[]): void {
    for (const { id } of sampled) {
      if (id === this.special.thinkClose) this.open = false;
      else if (id === this.special.thinkOpen) this.open = true;
      else if (this.open) this.tokens++;
    }
  }
}

/** Returns the usage object of a reply. `reasoning` is the number of thinking tokens; `null` on routes that do not report this number. */
export function wireUsage(usage: TokenUsage, reasoning: number | null = null): object {
  return {
    prompt_tokens: usage.prompt,
    total_tokens: usage.prompt + usage.completion,
    completion_tokens: usage.completion,
    prompt_tokens_details: {
      cached_tokens: usage.cached,
      created_cache_tokens: reasoning === null ? null : createdCacheTokens(usage),
      multimodal_tokens: null,
    },
    completion_tokens_details: reasoning === null ? null : { reasoning_tokens: reasoning },
  };
}

/** Returns the number of prompt tokens in full blocks that were not in the prefix cache. */
function createdCacheTokens({ prompt, cached }: TokenUsage): number {
  return Math.max(0, prompt - (prompt % BLOCK_TOKENS) - cached);
}

/**
 * Returns the logprob entries of a reply of `/inference/v1/generate`. The sampled token is listed first among its alternatives and counts
 * as one of them, so there is always at least one.
 */
export function generateLogprobs(
  wire: readonly WireToken[],
  options: { readonly shape: 'token_id' | 'openai'; readonly mode: LogprobsMode; readonly count: number },
): object[] {
  const { shape, mode, count } = options;
  return wire.map(({ id, logprob, top }) => {
    const entry = (tokenId: number, value: WireLogprob): object => {
      if (shape === 'openai') return { token: `token_id:${tokenId}`, logprob: value, bytes: null };
      const rank = top.findIndex((other) => other.id === tokenId);
      // A token that is not among the requested alternatives is less likely than all of them. Its exact rank is not computed; the rank
      // after the last alternative is reported.
      return { token_id: tokenId, logprob: value, rank: rank < 0 ? top.length + 1 : rank + 1 };
    };
    const others = top.filter((other) => other.id !== id).slice(0, Math.max(count - 1, 0));
    return {
      ...entry(id, logprob),
      top_logprobs: [entry(id, logprob), ...others.map((other) => entry(other.id, wireLogprob(other, mode)))],
    };
  });
}

/** Returns the assistant message of a complete reply. `forced` is whether the request forced a tool call. */
export function wireMessage(request: ChatRequest, parsed: ParsedMessage, forced: boolean): object {
  const { reasoning, content, calls } = parsed;
  return {
    role: 'assistant',
    // With a forced call, vLLM sends an empty string instead of `null` when there is no content.
    content: forced ? (content ?? '') : content,
    refusal: null,
    annotations: null,
    audio: null,
    function_call: null,
    ...(calls.length === 0
      ? {}
      : { tool_calls: (request.parallel_tool_calls === false ? calls.slice(0, 1) : calls).map(wireCall) }),
    reasoning: request.include_reasoning === false ? null : reasoning,
  };
}

/** Returns the `delta` of a streamed chunk; an empty object when the chunk shows nothing. */
export function wireDelta(request: ChatRequest, delta: MessageDelta): object {
  const calls = (delta.calls ?? []).filter(({ index }) => request.parallel_tool_calls !== false || index === 0);
  return {
    ...(delta.reasoning === undefined || request.include_reasoning === false ? {} : { reasoning: delta.reasoning }),
    ...(delta.content === undefined ? {} : { content: delta.content }),
    ...(calls.length === 0 ? {} : { tool_calls: calls.map(wireCallDelta) }),
  };
}

function wireCall(call: ParsedCall): object {
  return { id: call.id, type: 'function', function: { name: call.name, arguments: call.argumentsText } };
}

function wireCallDelta(delta: CallDelta): object {
  if ('name' in delta) {
    return { index: delta.index, id: delta.id, type: 'function', function: { name: delta.name } };
  }
  return { index: delta.index, function: { arguments: delta.argumentsText } };
}
