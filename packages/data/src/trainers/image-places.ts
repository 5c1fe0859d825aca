import { z } from 'zod';
import type { PlacedRow } from './format.ts';

/** The place of an image in a trace. */
export type ImagePlace = {
  /** Number of the message in the prompt's messages followed by the response's, from 0. */
  readonly message: number;
  /** Number of the part in the content of the message, from 0. */
  readonly part: number;
  /** URL of the image, as the messages have it: a reference to an image of the trajectory, or a URL of the agent. */
  readonly url: string;
  /** Position of the image's first placeholder among the tokens of prompt and response; `null` when it is not known. */
  readonly token_start: number | null;
  /** Number of the image's placeholders; `null` when it is not known. */
  readonly token_count: number | null;
};

/** Option of the formats that carry images. On a command line it is a text of ids with commas. */
const imageTokenOption = z
  .union([z.array(z.int().min(0)).min(1), z.string().regex(/^\d+(,\d+)*$/, 'must be an id, or ids with commas')])
  .transform((value) => (typeof value === 'string' ? value.split(',').map(Number) : value))
  .nullable()
  .default(null)
  .describe(
    "id of the token that stands for a piece of an image, such as Qwen's <|image_pad|>; several ids are one piece",
  );

export const imageOptions = z.strictObject({ image_token_ids: imageTokenOption });
export type ImageOptions = z.infer<typeof imageOptions>;

/**
 * Returns the places of a row's images, in their order. Engines that report expanded prompt ids write one run of placeholders for each image.
 * If the ids of the row have as many runs as there are images, the tokens of the images are known. Otherwise they are unknown for all images
 * of the row.
 */
export function imagePlaces({ row }: PlacedRow, { image_token_ids: token }: ImageOptions): ImagePlace[] {
  const messages = [...row.promptMessages, ...row.responseMessages];
  const places = messages.flatMap(({ content }, message) =>
    content === null || typeof content === 'string'
      ? []
      : content.flatMap((part, at) =>
          part.type === 'image_url' ? [{ message, part: at, url: part.image_url.url }] : [],
        ),
  );
  if (places.length === 0) return [];
  const runs = token === null ? [] : runsOf([...row.promptIds, ...row.responseIds], token);
  const areKnown = runs.length === places.length;
  return places.map((place, index) => ({
    ...place,
    token_start: areKnown ? (runs[index]?.start ?? null) : null,
    token_count: areKnown ? (runs[index]?.count ?? null) : null,
  }));
}

/** Returns the longest runs of a repeated sequence of ids. */
function runsOf(
  ids: readonly number[],
  piece: readonly number[],
): { readonly start: number; readonly count: number }[] {
  const isPieceAt = (at: number): boolean => piece.every((id, offset) => ids[at + offset] === id);
  const runs: { start: number; count: number }[] = [];
  for (let at = 0; at < ids.length; ) {
    if (!isPieceAt(at)) {
      at++;
      continue;
    }
    const start = at;
    while (isPieceAt(at)) at += piece.length;
    runs.push({ start, count: at - start });
  }
  return runs;
}
