/**
 * This file encodes opaque fields, in which floe sends text that the client must return unchanged: signatures of thinking, and encrypted
 * content. The text is encoded, not encrypted, because it is the agent's own output, and any node must be able to read it. A client can
 * forge these fields, so a completion id in such a field is checked before it is trusted.
 */

/** Matches a completion id. The length limit is above that of any real id, so that a much longer invented text is rejected. */
const COMPLETION_ID = /^cpl_[0-9a-z]{1,40}$/;

/** Text from an opaque field, and the id of the completion that it belongs to; `null` when the field names none. */
type OpaqueText = { readonly completionId: string | null; readonly text: string };

/** Returns the completion id of which a signature consists; `null` when floe did not make the signature. */
export function completionIdOf(signature: string | null | undefined): string | null {
  return signature && COMPLETION_ID.test(signature) ? signature : null;
}

/** Kind of text that an `encrypted_content` field of OpenAI Responses holds. */
type SealedKind = 'thinking' | 'summary';

const sealPrefix = (kind: SealedKind): string => `floe.${kind}.2.`;

/** Encodes text for an `encrypted_content` field of OpenAI Responses. */
export function sealText(kind: SealedKind, completionId: string, text: string): string {
  return `${sealPrefix(kind)}${completionId}.${Buffer.from(text, 'utf8').toString('base64url')}`;
}

/** Decodes an `encrypted_content` field. Returns `null` when {@link sealText} did not make it for this kind. */
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
 * Prefix that marks a Gemini signature as floe's, with a version. Its nine characters become exactly twelve base64 characters, so the
 * encoded prefix does not depend on the text after it. Those twelve are letters and digits only, so they are the same in the URL-safe
 * alphabet.
 */
const SIGNATURE_PREFIX = 'floe/th2:';
const ENCODED_SIGNATURE_PREFIX = Buffer.from(SIGNATURE_PREFIX).toString('base64');

/**
 * Encodes a reply's thinking, up to the part that is signed, as a Gemini `thoughtSignature`. Gemini CLI drops thought parts from its
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
  // Only a JSON string is parsed: the limits on a request body do not cover JSON inside its strings, so other JSON could be costly.
  if (end < 0 || !json.startsWith('"')) return null;
  try {
    const text: unknown = JSON.parse(json);
    return typeof text === 'string' ? { completionId: completionIdOf(decoded.slice(0, end)), text } : null;
  } catch {
    // The field is truncated or forged, so it is not a signature of floe's.
    return null;
  }
}
