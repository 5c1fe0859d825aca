/** Matches a number as programs print it. It does not match NaN, so a printed line with NaN never equals a quoted line. */
const NUMBER = /-?\d+(?:\.\d+)?(?:e[-+]?\d+)?/g;

/**
 * Compares the last line that commands printed with the quoted line. Returns the difference, or `null` when they are equal. Numbers may
 * differ. The last number must not be 0, because it is the size of a gradient, the size of a change of weights, or a number of samples.
 */
export function differenceOf(printed: string, quoted: string): string | null {
  const text = printed.trim();
  const form = quoted.split(NUMBER).map(escaped).join(`(?:${NUMBER.source})`);
  if (!new RegExp(`^${form}$`).test(text)) return `it printed ${JSON.stringify(text)}, not ${JSON.stringify(quoted)}`;
  const last = text.match(NUMBER)?.at(-1);
  return last !== undefined && Number(last) === 0 ? `the last number of ${JSON.stringify(text)} is 0` : null;
}

function escaped(text: string): string {
  return text.replaceAll(/[.*+?^${}()|[\]\\]/g, '\\$&');
}
