import type { LogprobsMode } from '../context.ts';
import type { SampledToken } from '../run.ts';
import type { Vocabulary } from '../vocabulary.ts';
import { type WireLogprob, type WireToken, wireLogprob } from '../wire-choice.ts';

/** The entries of a chat reply's logprobs. */
export function chatLogprobs(
  wire: readonly WireToken[],
  tokens: readonly SampledToken[],
  options: { readonly vocabulary: Vocabulary; readonly mode: LogprobsMode; readonly asId: boolean },
): object[] {
  const { vocabulary, mode, asId } = options;
  const entry = (id: number, logprob: WireLogprob): object => ({
    token: tokenName(vocabulary, id, asId),
    logprob,
    bytes: [...vocabulary.bytes(id)],
  });
  return wire.map(({ id, logprob }, index) => ({
    ...entry(id, logprob),
    top_logprobs: (tokens[index]?.top ?? []).map((other) => entry(other.id, wireLogprob(other, mode))),
  }));
}

/** The token's name in a logprob entry. */
export function tokenName(vocabulary: Vocabulary, id: number, asId: boolean): string {
  return asId ? `token_id:${id}` : vocabulary.decode([id]);
}
