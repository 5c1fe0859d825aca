/** Assumed where the engine does not tell its window. */
const DEFAULT_CONTEXT_TOKENS = 131_072;
/** Of the window, what one reply may take unless the task says otherwise. */
const REPLY_SHARE = 1 / 4;
/** Engines refuse a bound of less than one token, and a tool call needs some room. */
const MIN_REPLY_TOKENS = 256;

export type Window = {
  /** Tokens of prompt and reply together; harnesses compact by it. */
  readonly contextTokens: number;
  /** Most tokens of one reply. */
  readonly replyTokens: number;
};

/** The policy's window as a harness is told it. `maxReplyTokens`: what the task sets instead of a quarter of the window. */
export function windowOf(contextWindow: number | null, maxReplyTokens?: number): Window {
  const contextTokens = contextWindow ?? DEFAULT_CONTEXT_TOKENS;
  const replyTokens = maxReplyTokens ?? Math.max(MIN_REPLY_TOKENS, Math.floor(contextTokens * REPLY_SHARE));
  return { contextTokens, replyTokens };
}
