import { z } from 'zod';

const scoreSchema = z.looseObject({ score: z.number() });

/** Returns the score in a reply that is a number, or that has a JSON object with the field `score`; `null` when there is none. */
export function scoreIn(reply: string): number | null {
  const text = reply.trim();
  if (/^-?\d+(\.\d+)?$/.test(text)) return Number(text);
  for (const [object] of [...text.matchAll(/\{[^{}]*\}/g)].reverse()) {
    try {
      const score = scoreSchema.safeParse(JSON.parse(object));
      if (score.success) return score.data.score;
    } catch {
      // What stands between braces is not always JSON.
    }
  }
  return null;
}
