import type { Content } from '@floe-rl/core/schema';

/** Maximum number of characters of text that an agent sees of one call. */
const DEFAULT_CHARS = 32_768;

/** Leaves out the middle of each text that is longer than `maxChars`, and says so in its place. Images stay as they are. Lone surrogates become U+FFFD. */
export function cutContent(content: Content, maxChars = DEFAULT_CHARS): Content {
  if (typeof content === 'string') return cutText(content, maxChars);
  return content.map((part) => (part.type === 'text' ? { ...part, text: cutText(part.text, maxChars) } : part));
}

function cutText(text: string, maxChars: number): string {
  if (text.length <= maxChars) return text.toWellFormed();
  const half = Math.floor(maxChars / 2);
  const note = `\n[${text.length - 2 * half} characters in the middle are left out]\n`;
  return `${text.slice(0, half)}${note}${text.slice(text.length - half)}`.toWellFormed();
}
