/** Where a program writes its figures as JSON: `line` after its closing line, `file` with indentation. */
export type JsonOption = { readonly line: boolean; readonly file: string | null };

/** Splits `--json`, or `--json FILE`, from a program's other arguments. */
export function takeJsonOption(args: readonly string[]): {
  readonly args: readonly string[];
  readonly json: JsonOption;
} {
  const index = args.indexOf('--json');
  if (index < 0) return { args, json: { line: false, file: null } };
  const value = args[index + 1];
  const file = value === undefined || value.startsWith('-') ? null : value;
  const rest = args.toSpliced(index, file === null ? 1 : 2);
  return { args: rest, json: { line: file === null, file } };
}
