import type { Completion } from './completion.ts';
import type { SameText } from './drift.ts';
import { buildGraph, type GraphOptions } from './graph.ts';
import { bytesOf } from './sequence.ts';

/** Pairs of texts that are compared per session; more stay unproven, so that no session occupies an engine for long. */
const MAX_PAIRS = 256;
/** Enough concurrent requests to hide the round trip to the engine, too few to slow its sampling noticeably. */
const CONCURRENT_DECODES = 8;
/** Incomplete UTF-8 decodes to this character, so equal texts that contain it may stand for different bytes. */
const REPLACEMENT = '\uFFFD';

type Pair = { readonly sampled: Int32Array; readonly rendered: Int32Array };

/**
 * Lets an engine decode the ids that must be compared to distinguish drift that is only another tokenization of the same text.
 * `decode` returns the text of ids, special tokens included; a pair for which it rejects stays unproven. Never rejects.
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

/** `null` when the engine does not decode both, or a text has an incomplete character. */
async function compareTexts(
  { sampled, rendered }: Pair,
  decode: (ids: Int32Array) => Promise<string>,
): Promise<boolean | null> {
  // Some engines refuse to decode an empty list.
  const textOf = (ids: Int32Array) => (ids.length === 0 ? Promise.resolve('') : decode(ids));
  const [one, other] = await Promise.allSettled([textOf(sampled), textOf(rendered)]);
  if (one.status === 'rejected' || other.status === 'rejected') return null;
  return one.value.includes(REPLACEMENT) ? null : one.value === other.value;
}

/** A key by content, because the arrays are different objects when the graph is built a second time. */
function keyOf(sampled: Int32Array, rendered: Int32Array): string {
  return `${sampled.length} ${bytesOf(sampled).toString('latin1')}${bytesOf(rendered).toString('latin1')}`;
}
