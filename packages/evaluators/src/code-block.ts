/** Matches a line that begins or ends a code block: at most three spaces, three or more backticks or tildes, and further text. */
const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/;

/**
 * Returns the content of the last complete fenced code block of a Markdown text; `null` when there is none. `language` is the first word
 * after the fence, in any case; `null` accepts every block. The time is linear in the length of the text.
 */
export function lastCodeBlock(text: string, language: string | null): string | null {
  let found: string | null = null;
  let open: { readonly fence: string; readonly isWanted: boolean; readonly lines: string[] } | null = null;
  for (const line of text.split(/\r?\n/)) {
    const [, fence = '', info = ''] = FENCE.exec(line) ?? [];
    if (open === null) {
      if (fence !== '' && !info.includes('`')) open = { fence, isWanted: isLanguage(info, language), lines: [] };
    } else if (fence.startsWith(open.fence) && info.trim() === '') {
      if (open.isWanted) found = open.lines.map((one) => `${one}\n`).join('');
      open = null;
    } else open.lines.push(line);
  }
  return found;
}

function isLanguage(info: string, language: string | null): boolean {
  return language === null || info.trim().split(/\s/, 1)[0]?.toLowerCase() === language.toLowerCase();
}
