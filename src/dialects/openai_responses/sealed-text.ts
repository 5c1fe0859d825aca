import { completionNamed } from '../opaque-fields.ts';

/**
 * Text inside `encrypted_content`, which clients keep as it is and send back. It is no secret from the agent, whose own words
 * it is, so it is encoded rather than encrypted: self-contained, and readable by any node. Beside it stands the completion that
 * the text is of.
 */
export type SealedKind = 'thinking' | 'summary';

export type Unsealed = { readonly completionId: string | null; readonly text: string };

const prefixOf = (kind: SealedKind): string => `floe.${kind}.2.`;

export function sealText(kind: SealedKind, completionId: string, text: string): string {
  return `${prefixOf(kind)}${completionId}.${Buffer.from(text, 'utf8').toString('base64url')}`;
}

/** Null for what {@link sealText} did not make for this kind. */
export function unsealText(kind: SealedKind, sealed: string): Unsealed | null {
  const prefix = prefixOf(kind);
  const end = sealed.indexOf('.', prefix.length);
  if (!sealed.startsWith(prefix) || end < 0) return null;
  return {
    completionId: completionNamed(sealed.slice(prefix.length, end)),
    text: Buffer.from(sealed.slice(end + 1), 'base64url').toString('utf8'),
  };
}
