import type { LogprobsMode } from '../context.ts';
import { BLOCK_TOKENS } from '../prefix-cache.ts';
import type { TokenUsage } from '../sampled-call.ts';
import type { SpecialTokens, Vocabulary } from '../vocabulary.ts';
import { type WireLogprob, type WireToken, wireLogprob } from '../wire-choice.ts';
import type { VllmContext } from './context.ts';

/** Counts the tokens of a reply's thinking, without the delimiters. */
export class ThinkingCount {
  tokens = 0;
  private readonly special: SpecialTokens;
  private open: boolean;

  constructor(special: SpecialTokens, open: boolean) {
    this.special = special;
    this.open = open;
  }

  take(sampled: readonly { readonly id: number }[]): void {
    for (const { id } of sampled) {
      if (id === this.special.thinkClose) this.open = false;
      else if (id === this.special.thinkOpen) this.open = true;
      else if (this.open) this.tokens++;
    }
  }
}

/** The usage object of a reply. `reasoning` is how many of its tokens were thinking; null on routes that do not tell. */
export function wireUsage(context: VllmContext, usage: TokenUsage, reasoning: number | null = null): object {
  return {
    prompt_tokens: usage.prompt,
    total_tokens: usage.prompt + usage.completion,
    completion_tokens: usage.completion,
    prompt_tokens_details: context.config.reportCachedTokens
      ? {
          cached_tokens: usage.cached,
          created_cache_tokens: reasoning === null ? null : createdTokens(usage),
          multimodal_tokens: null,
        }
      : null,
    completion_tokens_details: reasoning === null ? null : { reasoning_tokens: reasoning },
  };
}

/** Whole blocks of the prompt that the prefix cache did not have. */
function createdTokens({ prompt, cached }: TokenUsage): number {
  return Math.max(0, prompt - (prompt % BLOCK_TOKENS) - cached);
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
      // What was not asked for is not known here, but to be less likely than all that was.
      return { token_id: tokenId, logprob: value, rank: rank < 0 ? top.length + 1 : rank + 1 };
    };
    const others = top.filter((other) => other.id !== id).slice(0, Math.max(count - 1, 0));
    return {
      ...entry(id, logprob),
      top_logprobs: [entry(id, logprob), ...others.map((other) => entry(other.id, wireLogprob(other, mode)))],
    };
  });
}
