import type { Completion } from './completion.ts';
import type { SameText } from './drift.ts';
import { buildGraph, type GraphOptions } from './graph.ts';
import { bytesOf } from './sequence.ts';

/** Beyond these the rest stays unproven: a session whose every turn was rendered otherwise must not hold an engine up for long. */
const MAX_QUESTIONS = 256;
/** Enough to hide the way to the engine and back, too few to be felt beside its sampling. */
const AT_ONCE = 8;
/** What bytes that are no whole character decode to: equal texts with it in them may stand for different bytes. */
const REPLACEMENT = '\uFFFD';

type Question = { readonly sampled: Int32Array; readonly rendered: Int32Array };

/**
 * Asks an engine to decode what has to be compared to tell drift that is only another cut into tokens from the rest. `decode` gives the
 * text of ids, special tokens included; where it rejects, the question stays open. Never rejects.
 *
 * The function returned answers {@link buildGraph} for the same completions and `closeIds`.
 */
export async function proveSameText(
  completions: readonly Completion[],
  closeIds: GraphOptions['closeIds'],
  decode: (ids: Int32Array) => Promise<string>,
): Promise<SameText> {
  const questions = openQuestions(completions, closeIds);
  const answers = new Map<string, boolean>();
  const waiting = [...questions.entries()].values();
  const work = async (): Promise<void> => {
    for (const [key, question] of waiting) {
      const same = await answer(question, decode);
      if (same !== null) answers.set(key, same);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return (sampled, rendered) => answers.get(keyOf(sampled, rendered)) ?? null;
}

function openQuestions(completions: readonly Completion[], closeIds: GraphOptions['closeIds']): Map<string, Question> {
  const questions = new Map<string, Question>();
  buildGraph(completions, {
    closeIds: closeIds ?? [],
    sameText: (sampled, rendered) => {
      if (questions.size < MAX_QUESTIONS) questions.set(keyOf(sampled, rendered), { sampled, rendered });
      return null;
    },
  });
  return questions;
}

async function answer(
  { sampled, rendered }: Question,
  decode: (ids: Int32Array) => Promise<string>,
): Promise<boolean | null> {
  // Some engines refuse to decode nothing.
  const textOf = (ids: Int32Array) => (ids.length === 0 ? Promise.resolve('') : decode(ids));
  const [one, other] = await Promise.allSettled([textOf(sampled), textOf(rendered)]);
  if (one.status === 'rejected' || other.status === 'rejected') return null;
  return one.value.includes(REPLACEMENT) ? null : one.value === other.value;
}

/** By content, so that it does not matter that the graph is built a second time. */
function keyOf(sampled: Int32Array, rendered: Int32Array): string {
  return `${sampled.length} ${bytesOf(sampled).toString('latin1')}${bytesOf(rendered).toString('latin1')}`;
}
