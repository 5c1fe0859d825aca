import type { Content, ContentPart } from '@floe-rl/core/schema';
import { z } from 'zod';
import { cutContent } from '../../cut-content.ts';

/** Maximum number of images of one observation that are kept. */
const MAX_IMAGES = 16;

/** Blocks of content as MCP and the Open Reward Standard have them. Blocks of other kinds are named in the text. */
export const blocksSchema = z.array(
  z.looseObject({
    type: z.string(),
    text: z.string().optional(),
    data: z.string().optional(),
    mimeType: z.string().optional(),
  }),
);
export type Blocks = z.output<typeof blocksSchema>;

/** Returns the content of blocks, with images as data URLs. */
export function contentOfBlocks(blocks: Blocks, maxChars: number): Content {
  const parts = blocks.map(({ type, text, data, mimeType }): ContentPart => {
    if (type === 'text') return { type, text: text ?? '' };
    if (type === 'image' && data !== undefined) return imagePart(data, mimeType);
    return { type: 'text', text: `[${type}]` };
  });
  return contentOf(parts, maxChars);
}

/** Returns the part for an image that is a data URL or base64. */
export function imagePart(data: string, mimeType?: string): ContentPart {
  const url = data.startsWith('data:') ? data : `data:${mimeType ?? typeOfImage(data)};base64,${data}`;
  return { type: 'image_url', image_url: { url } };
}

/** Returns the type of an image in base64 by its first bytes. */
function typeOfImage(base64: string): string {
  if (base64.startsWith('/9j/')) return 'image/jpeg';
  if (base64.startsWith('R0lGOD')) return 'image/gif';
  if (base64.startsWith('UklGR')) return 'image/webp';
  return 'image/png';
}

/** Returns content with texts of at most `maxChars` characters: one text when there are no images. */
export function contentOf(parts: readonly ContentPart[], maxChars: number): Content {
  const texts = parts.flatMap((part) => (part.type === 'text' ? [part.text] : []));
  if (texts.length === parts.length) return cutContent(texts.join('\n'), maxChars);
  const isShown = (part: ContentPart): boolean => part.type !== 'text' || part.text !== '';
  const images = parts.filter(({ type }) => type === 'image_url').slice(0, MAX_IMAGES);
  return cutContent(
    parts.filter((part) => isShown(part) && (part.type === 'text' || images.includes(part))),
    maxChars,
  );
}
