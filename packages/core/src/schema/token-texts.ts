import { z } from 'zod';

/** Maximum number of token ids in one request. Decoding this many takes some tens of milliseconds. */
const MAX_IDS = 5_000;

/** The body of `POST /token-texts`. */
export const tokenTextsRequestSchema = z.strictObject({
  model: z.string().min(1).max(512).describe('name of the model, as completion records have it'),
  ids: z.array(z.int().min(0)).max(MAX_IDS),
});

export const tokenTextsReplySchema = z.object({
  texts: z
    .array(z.string())
    .nullable()
    .describe(
      'text of each id; of the ids of one character, the last has its text. null when the server has no tokenizer for the model',
    ),
});
