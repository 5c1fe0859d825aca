/** Longer than any completion id: what a client made up is not kept. */
const COMPLETION_ID = /^cpl_[0-9a-z]{1,40}$/;

/**
 * The completion that a signature names; null for one that is not floe's. Whoever sends a request can write one, so it says no
 * more than which of the session's replies a turn may be.
 */
export function completionNamed(signature: string | null | undefined): string | null {
  return signature && COMPLETION_ID.test(signature) ? signature : null;
}
