import type { LogprobsMode } from '../context.ts';
import type { TokenUsage } from '../sampled-call.ts';
import type { Vocabulary } from '../vocabulary.ts';
import { type WireLogprob, type WireToken, wireLogprob } from '../wire-choice.ts';
import type { VllmContext } from './context.ts';

/** The usage object of a reply. */
export function wireUsage(context: VllmContext, usage: TokenUsage): object {
  return {
    prompt_tokens: usage.prompt,
    total_tokens: usage.prompt + usage.completion,
    completion_tokens: usage.completion,
    ...(context.config.reportCachedTokens ? { prompt_tokens_details: { cached_tokens: usage.cached } } : {}),
  };
}

/** The entries of a chat reply's logprobs. */
export function chatLogprobs(
  wire: readonly WireToken[],
  options: { readonly vocabulary: Vocabulary; readonly mode: LogprobsMode; readonly asId: boolean },
): object[] {
  const { vocabulary, mode, asId } = options;
  const entry = (id: number, logprob: WireLogprob): object => ({
    token: tokenName(vocabulary, id, asId),
    logprob,
    bytes: [...vocabulary.bytes(id)],
  });
  return wire.map(({ id, logprob, top }) => ({
    ...entry(id, logprob),
    top_logprobs: top.map((other) => entry(other.id, wireLogprob(other, mode))),
  }));
}

/** The token's name in a logprob entry. */
export function tokenName(vocabulary: Vocabulary, id: number, asId: boolean): string {
  return asId ? `token_id:${id}` : vocabulary.decode([id]);
}

/**
 * The entries of token generation's logprobs. The token sampled comes first among its own alternatives, and counts as one
 * of them; there is always one.
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
      return { token_id: tokenId, logprob: value, rank: rank < 0 ? null : rank + 1 };
    };
    const others = top.filter((other) => other.id !== id).slice(0, Math.max(count - 1, 0));
    return {
      ...entry(id, logprob),
      top_logprobs: [entry(id, logprob), ...others.map((other) => entry(other.id, wireLogprob(other, mode)))],
    };
  });
}
