/** A number as programs print it. NaN is none, so a line with one does not have the form of a quoted line. */
const NUMBER = /-?\d+(?:\.\d+)?(?:e[-+]?\d+)?/g;

/**
 * Returns what is wrong with the last line that commands printed; null when it is the quoted one. Numbers may differ, except that the last one
 * must not be 0: it is the size of a gradient or of a change of weights, or a number of samples.
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
