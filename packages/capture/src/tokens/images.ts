import { createHash } from 'node:crypto';
import { type ChatMessage, type ContentPart, IMAGE_REFERENCE } from '@floe-rl/core/schema';

/**
 * URLs of images by reference. When a URL contains the image itself, the recorded message has a reference instead of the URL. Agents send all
 * their images with each call, and each image may have megabytes.
 */
export type ImageUrls = ReadonlyMap<string, string>;

export const NO_IMAGES: ImageUrls = new Map();

/** Beginning of a URL that contains the image itself. */
const DATA = 'data:';

/**
 * Returns the reference under which the image of a URL is stored; `null` when recorded messages have the URL itself, because it does not
 * contain the image. A URL that looks like a reference gets a reference too, so that an agent cannot forge one.
 */
export function imageReference(url: string): string | null {
  if (!url.startsWith(DATA) && !url.startsWith(IMAGE_REFERENCE)) return null;
  return `${IMAGE_REFERENCE}${createHash('sha256').update(url).digest('hex')}`;
}

/** Returns the references to images in recorded messages. */
export function referencesIn(messages: readonly ChatMessage[]): ReadonlySet<string> {
  const references = new Set<string>();
  for (const { content } of messages) {
    if (typeof content !== 'object' || content === null) continue;
    for (const part of content) if (isReference(part)) references.add(part.image_url.url);
  }
  return references;
}

/**
 * Returns the message with the URL that `replace` returns for the URL of each image. Returns the message itself when it has no images or
 * none of their URLs changes.
 */
export function withImageUrls(message: ChatMessage, replace: (url: string) => string): ChatMessage {
  const { content } = message;
  if (typeof content !== 'object' || content === null) return message;
  let changed = false;
  const parts = content.map((part): ContentPart => {
    if (part.type !== 'image_url') return part;
    const url = replace(part.image_url.url);
    if (url === part.image_url.url) return part;
    changed = true;
    return { ...part, image_url: { ...part.image_url, url } };
  });
  return changed ? ({ ...message, content: parts } as ChatMessage) : message;
}

/** Returns the images that `written` does not contain yet, and adds their references to `written`. */
export function imagesNotIn(written: Set<string>, images: ImageUrls): [string, string][] {
  return [...images].filter(([reference]) => {
    const isNew = !written.has(reference);
    written.add(reference);
    return isNew;
  });
}

function isReference(part: ContentPart): part is ContentPart & { type: 'image_url' } {
  return part.type === 'image_url' && part.image_url.url.startsWith(IMAGE_REFERENCE);
}
