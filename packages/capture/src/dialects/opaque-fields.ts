/**
 * This file encodes opaque fields, in which floe sends text that the client must return unchanged: signatures of thinking, and encrypted
 * content. The text is encoded, not encrypted, because it is the agent's own output, and any node must be able to read it. A client can
 * forge these fields, so a completion id in such a field is checked before it is trusted.
 */

/**
 * Matches a completion id. Real ids are shorter than the limit of 40 characters, so longer text was invented by a client and is rejected.
 */
const COMPLETION_ID = /^cpl_[0-9a-z]{1,40}$/;

/**
 * Text that was decoded from an opaque field, and the id of the completion that it belongs to; `null` when the field contains no valid id.
 */
type OpaqueText = { readonly completionId: string | null; readonly text: string };

/** Returns the completion id that floe sent as a signature; `null` when floe did not make the signature. */
export function completionIdOf(signature: string | null | undefined): string | null {
  return signature && COMPLETION_ID.test(signature) ? signature : null;
}

/** Kind of text in an `encrypted_content` field of OpenAI Responses. */
type SealedKind = 'thinking' | 'summary';

const sealPrefix = (kind: SealedKind): string => `floe.${kind}.2.`;

/** Encodes text for an `encrypted_content` field of OpenAI Responses. */
export function sealText(kind: SealedKind, completionId: string, text: string): string {
  return `${sealPrefix(kind)}${completionId}.${Buffer.from(text, 'utf8').toString('base64url')}`;
}

/** Decodes an `encrypted_content` field. Returns `null` when {@link sealText} did not make the field for this kind of text. */
export function unsealText(kind: SealedKind, sealed: string): OpaqueText | null {
  const prefix = sealPrefix(kind);
  const end = sealed.indexOf('.', prefix.length);
  if (!sealed.startsWith(prefix) || end < 0) return null;
  return {
    completionId: completionIdOf(sealed.slice(prefix.length, end)),
    text: Buffer.from(sealed.slice(end + 1), 'base64url').toString('utf8'),
  };
}

/**
 * Prefix of every Gemini signature that floe makes, with a format version. Its nine bytes become exactly twelve base64 characters, so the
 * encoded prefix does not depend on the text after it. These twelve characters are letters and digits, so they are the same in the URL-safe
 * alphabet.
 */
const SIGNATURE_PREFIX = 'floe/th2:';
const ENCODED_SIGNATURE_PREFIX = Buffer.from(SIGNATURE_PREFIX).toString('base64');

/**
 * Encodes the thinking that precedes a part of a reply as the `thoughtSignature` of that part. Gemini CLI drops thought parts from its
 * history but keeps signatures, so the thinking returns in this field.
 */
export function encodeThoughtSignature(completionId: string, thinking: string): string {
  // The thinking is encoded as JSON, because UTF-8 cannot represent a lone surrogate and JSON escapes it.
  return Buffer.from(`${SIGNATURE_PREFIX}${completionId}:${JSON.stringify(thinking)}`).toString('base64');
}

/** Decodes a Gemini `thoughtSignature`. Returns `null` when {@link encodeThoughtSignature} did not make it. */
export function decodeThoughtSignature(signature: string): OpaqueText | null {
  if (!signature.startsWith(ENCODED_SIGNATURE_PREFIX)) return null;
  const decoded = Buffer.from(signature, 'base64').toString().slice(SIGNATURE_PREFIX.length);
  const end = decoded.indexOf(':');
  const json = decoded.slice(end + 1);
  // JSON other than a string is refused without parsing it. The limits on a request body do not cover JSON inside its strings, so parsing a
  // large object could be costly.
  if (end < 0 || !json.startsWith('"')) return null;
  try {
    const text: unknown = JSON.parse(json);
    if (typeof text !== 'string') return null;
    return { completionId: completionIdOf(decoded.slice(0, end)), text: text.toWellFormed() };
  } catch {
    // The field is truncated or forged, so floe did not make it.
    return null;
  }
}
