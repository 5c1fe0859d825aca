import type { Completion } from './completion.ts';
import type { SameText } from './drift.ts';
import { buildGraph, type GraphOptions } from './graph.ts';
import { bytesOf } from './sequence.ts';

/**
 * Maximum number of pairs of texts that are compared per session, so that no session occupies an engine for long. Further pairs count as
 * not compared.
 */
const MAX_PAIRS = 256;
/**
 * Number of concurrent decode requests to an engine. It is high enough to hide the round trip, and too low to slow the engine's sampling
 * noticeably.
 */
const CONCURRENT_DECODES = 8;
/**
 * The character that a tokenizer's decoder writes for incomplete UTF-8. Equal texts that contain it may come from different bytes, so they
 * do not prove equality.
 */
const REPLACEMENT = '\uFFFD';

type Pair = { readonly sampled: Int32Array; readonly rendered: Int32Array };

/**
 * Finds the assistant turns for which the chat template rendered the same text as was sampled, but with different ids. An engine decodes
 * the sampled and the rendered ids of each such turn, and the texts are compared. `decode` returns the text of ids, special tokens
 * included. Pairs for which `decode` rejects count as not compared. Never rejects.
 *
 * The returned function is the `sameText` option of {@link buildGraph} for the same completions and `closeIds`.
 */
export async function proveSameText(
  completions: readonly Completion[],
  closeIds: GraphOptions['closeIds'],
  decode: (ids: Int32Array) => Promise<string>,
): Promise<SameText> {
  const pairs = pairsToCompare(completions, closeIds);
  const proofs = new Map<string, boolean>();
  const remaining = [...pairs.entries()].values();
  const work = async (): Promise<void> => {
    for (const [key, pair] of remaining) {
      const same = await compareTexts(pair, decode);
      if (same !== null) proofs.set(key, same);
    }
  };
  await Promise.all(Array.from({ length: CONCURRENT_DECODES }, work));
  return (sampled, rendered) => proofs.get(keyOf(sampled, rendered)) ?? null;
}

function pairsToCompare(completions: readonly Completion[], closeIds: GraphOptions['closeIds']): Map<string, Pair> {
  const pairs = new Map<string, Pair>();
  buildGraph(completions, {
    closeIds: closeIds ?? [],
    sameText: (sampled, rendered) => {
      if (pairs.size < MAX_PAIRS) pairs.set(keyOf(sampled, rendered), { sampled, rendered });
      return null;
    },
  });
  return pairs;
}

/**
 * Whether both id sequences decode to the same text. `null` when the engine fails to decode one of them, or when the text of `sampled`
 * contains an incomplete character.
 */
async function compareTexts(
  { sampled, rendered }: Pair,
  decode: (ids: Int32Array) => Promise<string>,
): Promise<boolean | null> {
  // An empty id list is not sent to the engine, because some engines refuse to decode it.
  const decoded = (ids: Int32Array) => (ids.length === 0 ? Promise.resolve('') : decode(ids));
  const [one, other] = await Promise.allSettled([decoded(sampled), decoded(rendered)]);
  if (one.status === 'rejected' || other.status === 'rejected') return null;
  return one.value.includes(REPLACEMENT) ? null : one.value === other.value;
}

/**
 * Returns a map key that consists of the ids themselves, because the arrays are different objects when the graph is built a second time.
 */
function keyOf(sampled: Int32Array, rendered: Int32Array): string {
  return `${sampled.length} ${bytesOf(sampled).toString('latin1')}${bytesOf(rendered).toString('latin1')}`;
}
