/** Returns a text as one word of a POSIX shell, in which nothing is an operator. It has quotes even where the shell needs none. */
export function shellWord(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}
