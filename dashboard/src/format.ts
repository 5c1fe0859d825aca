/** Returns a number with at most three significant digits after a unit of thousands, such as `12.3k`. */
export function compact(value: number): string {
  if (Math.abs(value) < 1000) return Number.isInteger(value) ? String(value) : value.toPrecision(3);
  for (const [unit, size] of [
    ['G', 1e9],
    ['M', 1e6],
    ['k', 1e3],
  ] as const) {
    if (Math.abs(value) >= size) return `${(value / size).toPrecision(3)}${unit}`;
  }
  return String(value);
}

/** Returns a duration in the unit that suits it, such as `350 ms`, `4.2 s` or `2 h 5 min`; a dash for `null`. */
export function duration(ms: number | null): string {
  if (ms === null) return '–';
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toPrecision(3)} s`;
  const minutes = Math.round(ms / 60_000);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Returns a reward with three decimals at most; a dash when there is none, which is not the same as 0. */
export function rewardText(reward: number | null): string {
  return reward === null ? '–' : String(Math.round(reward * 1000) / 1000);
}

/** Returns a share as a percentage; a dash when there is nothing to share. */
export function percent(part: number, whole: number): string {
  return whole === 0 ? '–' : `${Math.round((1000 * part) / whole) / 10} %`;
}

/** Returns a time of today as hours, minutes and seconds; any other time also has its day. */
export function timeText(iso: string): string {
  const time = new Date(iso);
  const isToday = time.toDateString() === new Date().toDateString();
  return isToday ? time.toLocaleTimeString() : time.toLocaleString();
}

/** Shows characters that a reader cannot see, such as terminal escapes in the output of an agent, as symbols. */
export function visible(text: string): string {
  return text.replaceAll('\r\n', '\n').replace(/\p{Cc}|\p{Bidi_Control}/gu, (char) => {
    const code = char.codePointAt(0) ?? 0;
    if (char === '\n' || char === '\t') return char;
    // Unicode has a symbol for each of these control characters.
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    return code === 0x7f ? '\u2421' : `\\u${code.toString(16).padStart(4, '0')}`;
  });
}
