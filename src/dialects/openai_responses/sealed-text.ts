/**
 * Text inside `encrypted_content`, which clients keep as it is and send back. It is no secret from the agent, whose own words
 * it is, so it is encoded rather than encrypted: self-contained, and readable by any node.
 */
export type SealedKind = 'thinking' | 'summary';

const prefixOf = (kind: SealedKind): string => `floe.${kind}.1.`;

export function sealText(kind: SealedKind, text: string): string {
  return prefixOf(kind) + Buffer.from(text, 'utf8').toString('base64url');
}

/** Null for what {@link sealText} did not make for this kind. */
export function unsealText(kind: SealedKind, sealed: string): string | null {
  const prefix = prefixOf(kind);
  return sealed.startsWith(prefix) ? Buffer.from(sealed.slice(prefix.length), 'base64url').toString('utf8') : null;
}
