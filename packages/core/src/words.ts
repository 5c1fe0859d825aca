const LETTERS = /[\p{L}\p{N}]+/gu;
const LETTERS_AND_MARKS = /[\p{L}\p{N}\p{M}]+/gu;

/**
 * Returns the words of a text in lower case and in their order. A word is a run of letters and digits. With `marks`, words may also contain
 * marks that belong to letters, such as the vowels of Hindi. Without it, marks separate words.
 */
export function lowerCaseWords(text: string, { marks = false }: { readonly marks?: boolean } = {}): string[] {
  return text.toLowerCase().match(marks ? LETTERS_AND_MARKS : LETTERS) ?? [];
}
