import { IMAGE_REFERENCE } from '@floe-rl/core/schema';

/**
 * The JSON text in front of the digest in a reference to an image. Its quotes are not escaped, so it never occurs inside a string: the text of
 * a message cannot be mistaken for an image.
 */
const BEFORE_REFERENCE = Buffer.from(`"image_url":{"url":"${IMAGE_REFERENCE}`);
const QUOTE = 0x22;

/**
 * Returns traces as JSON in which each reference to an image is replaced by the URL that contains the image, because Polar's messages have
 * no references. `images` is the JSON of the trajectory's images.
 */
export function withImages(traces: Buffer, images: Buffer): Buffer {
  const urls = new Map(Object.entries(JSON.parse(images.toString()) as Record<string, string>));
  if (urls.size === 0) return traces;
  const texts = new Map([...urls].map(([reference, url]) => [reference, Buffer.from(JSON.stringify(url))]));
  const parts: Buffer[] = [];
  let from = 0;
  for (let at = traces.indexOf(BEFORE_REFERENCE); at >= 0; at = traces.indexOf(BEFORE_REFERENCE, from)) {
    const quoteAt = at + BEFORE_REFERENCE.length - IMAGE_REFERENCE.length - 1;
    const end = traces.indexOf(QUOTE, quoteAt + 1) + 1;
    const reference = traces.toString('utf8', quoteAt + 1, end - 1);
    parts.push(traces.subarray(from, quoteAt), texts.get(reference) ?? traces.subarray(quoteAt, end));
    from = end;
  }
  return Buffer.concat([...parts, traces.subarray(from)]);
}
