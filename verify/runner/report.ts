import { writeFileSync } from 'node:fs';
import type { JsonOption } from '../../tools/json-option.ts';

type Cell = string | number;

/** Returns a table in Markdown. */
export function tableOf(head: readonly string[], rows: readonly (readonly Cell[])[]): string {
  return [head, head.map(() => '---'), ...rows].map((cells) => `| ${cells.join(' | ')} |`).join('\n');
}

/** Returns rows with aligned columns. The first `texts` columns are aligned to the left, and all others, which have numbers, to the right. */
export function columnsOf(rows: readonly (readonly string[])[], texts: number): string {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0)));
  const aligned = (text: string, column: number): string =>
    column < texts ? text.padEnd(widths[column] ?? 0) : text.padStart(widths[column] ?? 0);
  return rows.map((row) => row.map(aligned).join('  ').trimEnd()).join('\n');
}

/** The end of a program: its last line, its JSON, and whether it passed. */
export type Conclusion = {
  /** The last line of the text output; `null` when the program has already printed it. */
  readonly line: string | null;
  /** The counts that `--json` prints. */
  readonly keys: object;
  /** What `--json FILE` writes; `keys` when absent. */
  readonly details?: object;
  readonly isPassed: boolean;
  readonly json: JsonOption;
};

/** Prints the last line of a program and its JSON, and makes the program exit with 1 when something is wrong. */
export function conclude({ line, keys, details = keys, isPassed, json }: Conclusion): void {
  if (line !== null) console.log(line);
  if (json.line) console.log(JSON.stringify(keys));
  if (json.file !== null) writeFileSync(json.file, `${JSON.stringify(details, null, 1)}\n`);
  if (!isPassed) process.exitCode = 1;
}
