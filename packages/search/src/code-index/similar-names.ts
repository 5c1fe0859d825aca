/** Returns the similarity of two names, from 0 to 1. It is the share of letter pairs that both names have, without case and underscores. */
export function similarity(one: string, other: string): number {
  const [a, b] = [plain(one), plain(other)];
  if (a === '' || b === '' || Math.abs(a.length - b.length) > Math.max(a.length, b.length) * MAX_LENGTH_DIFFERENCE)
    return 0;
  if (a === b) return 1;
  const [first, second] = [groupsOf(a), groupsOf(b)];
  let both = 0;
  for (const group of first) if (second.has(group)) both++;
  return (2 * both) / (first.size + second.size);
}

/** Names whose lengths differ by a larger share are not similar. */
const MAX_LENGTH_DIFFERENCE = 0.5;

function plain(name: string): string {
  return name.replaceAll('_', '').toLowerCase();
}

/**
 * Returns the pairs of adjacent letters. Groups of three letters are not used, because a wrong letter in a short name would change all of
 * them.
 */
function groupsOf(name: string): Set<string> {
  const padded = ` ${name} `;
  return new Set(Array.from({ length: padded.length - 1 }, (_, i) => padded.slice(i, i + 2)));
}
