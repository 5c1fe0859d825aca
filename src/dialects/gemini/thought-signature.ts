import { completionNamed } from '../opaque-fields.ts';

/**
 * Marks a signature as floe's, with its version. Nine characters, so that they are twelve of the base64 text and the rest
 * does not depend on them; letters and digits there, so that it is the same in the URL-safe alphabet.
 */
const PREFIX = 'floe/th2:';
const ENCODED_PREFIX = Buffer.from(PREFIX).toString('base64');

/** A reply's thinking up to the part that is signed, and the completion that the reply is. */
export type Signed = { readonly completionId: string | null; readonly thinking: string };

/**
 * Completion and thinking of a reply in the form of Google's `thoughtSignature`, a field of opaque bytes. Gemini CLI drops
 * thought parts from its history and keeps signatures, so that this is how thinking comes back.
 */
export function signatureOf(completionId: string, thinking: string): string {
  // As JSON text, which UTF-8 holds whatever the string is made of.
  return Buffer.from(`${PREFIX}${completionId}:${JSON.stringify(thinking)}`).toString('base64');
}

/**
 * What a signature says; null for one that is not floe's. Whoever sends a request can write one, so it is worth no more than
 * a thought part.
 */
export function signedBy(signature: string): Signed | null {
  if (!signature.startsWith(ENCODED_PREFIX)) return null;
  const text = Buffer.from(signature, 'base64').toString().slice(PREFIX.length);
  const end = text.indexOf(':');
  const json = text.slice(end + 1);
  // Anything else would not be worth what it may cost to parse: the bounds of a body do not hold inside its strings.
  if (end < 0 || !json.startsWith('"')) return null;
  try {
    const thinking: unknown = JSON.parse(json);
    return typeof thinking === 'string' ? { completionId: completionNamed(text.slice(0, end)), thinking } : null;
  } catch {
    // Cut short or made up: no signature of ours.
    return null;
  }
}
