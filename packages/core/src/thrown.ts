/** Returns the message of a thrown value, which may be of any type and may have no text. Never throws. */
export function messageOf(thrown: unknown): string {
  try {
    return thrown instanceof Error ? String(thrown.message) : String(thrown);
  } catch {
    return 'something was thrown that has no text';
  }
}
