/** Returns the content of the last `\boxed{…}` or `\fbox{…}` whose braces are balanced; `null` when there is none. */
export function lastBoxed(text: string): string | null {
  const openings: { readonly at: number; readonly isBox: boolean }[] = [];
  let found: string | null = null;
  let foundAt = -1;
  for (let at = 0; at < text.length; at++) {
    const char = text[at];
    if (char === '\\') at++;
    else if (char === '{')
      openings.push({ at, isBox: /\\(?:boxed|fbox) {0,8}$/.test(text.slice(Math.max(0, at - 16), at)) });
    else if (char === '}') {
      const opening = openings.pop();
      if (opening === undefined || !opening.isBox || opening.at < foundAt) continue;
      found = text.slice(opening.at + 1, at);
      foundAt = opening.at;
    }
  }
  return found;
}
