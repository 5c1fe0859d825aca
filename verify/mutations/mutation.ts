/** A replacement in a source file. The text `find` must occur exactly once in the file. */
type Edit = { readonly find: string; readonly replace: string };

/**
 * A defect that is planted in `file` to check that a test detects it. `also` is a second edit of this file without which the defect would
 * not compile.
 */
export type Mutation = Edit & {
  readonly name: string;
  readonly file: string;
  readonly also?: Edit;
  /** Test folders and files that must detect the defect. The default is the tests of tokens, proxy and engines. */
  readonly tests?: readonly string[];
};

/**
 * Returns the text of a source file with a defect planted in it. Throws when a text to replace does not occur exactly once, for example
 * because the source was changed.
 */
export function withDefect(source: string, { name, find, replace, also }: Mutation): string {
  const edits = also === undefined ? [{ find, replace }] : [{ find, replace }, also];
  return edits.reduce((text, edit) => {
    const parts = text.split(edit.find);
    if (parts.length === 2) return parts.join(edit.replace);
    throw new Error(`mutation "${name}": its text occurs ${parts.length - 1} times in the file instead of once`);
  }, source);
}
