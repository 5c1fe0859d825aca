import { FloeError } from '../core/errors.ts';
import { hashText } from './random.ts';

/** Least and most placeholders of an image, of 7 tokens each: no more than a real screenshot takes. */
const MIN_PADS = 4;
const MAX_PADS = 131;

/** Finds the images of a rendered conversation. */
export const IMAGE_PATTERN = /<\|vision_start\|>(?:<\|image_pad\|>)+<\|vision_end\|>/g;

const SCHEMES = /^(?:data:image\/[a-z0-9.+-]+;base64,|https?:\/\/)/i;

/**
 * What the template writes for an image. The bundled vocabulary has no tokens of its own for it, so these are ordinary
 * ones. How many follows from a hash of the URL, data or not, so that different images mostly give different prompts
 * (with real models, images of one size give the same ids); nothing is ever fetched or decoded. `path` names the field in messages.
 * Throws `engine_rejected` for a URL that is none of an image.
 */
export function imageText(url: string, path: string): string {
  const scheme = SCHEMES.exec(url)?.[0];
  if (scheme === undefined) {
    throw new FloeError('engine_rejected', `${path}: The URL must be either a HTTP or a base64 image data URL.`);
  }
  const rest = url.slice(scheme.length);
  if (rest === '' || (scheme.startsWith('data:') && !isBase64(rest))) {
    throw new FloeError('engine_rejected', `${path}: the image is empty or no base64 data.`);
  }
  const pads = MIN_PADS + (hashText(url) % (MAX_PADS - MIN_PADS + 1));
  return `<|vision_start|>${'<|image_pad|>'.repeat(pads)}<|vision_end|>`;
}

function isBase64(text: string): boolean {
  return /^[A-Za-z0-9+/\s]+={0,2}\s*$/.test(text);
}
