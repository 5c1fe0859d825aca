import { bundledVocabulary, type ScenarioInput } from '@floe-rl/sim';

type ReplyParts = Extract<ScenarioInput['rules'], readonly unknown[]>[number]['reply'];

const WORDS = 'Each step of this work follows the one before it, and the tests show what is left. ';

/** Beginning of a reply that thinks. The thinking is not shown. */
const THINK_START = '<think>\n';

/**
 * The replies of about 800 tokens that are measured, by the word in the prompt that requests them. `hiddenIds` is the number of ids before the
 * first id with visible text.
 */
export const REPLIES = {
  'plain-reply': { reply: [{ text: WORDS.repeat(42).trim() }], hiddenIds: 0 },
  'thinking-reply': {
    reply: [{ think: { text: WORDS.repeat(21).trim(), noise: 0 } }, { text: WORDS.repeat(21).trim() }],
    hiddenIds: bundledVocabulary().encode(THINK_START).length,
  },
} satisfies Record<string, { readonly reply: ReplyParts; readonly hiddenIds: number }>;

export type ReplyName = keyof typeof REPLIES;
