import { FAILED, type LogParser, lineParser, PASSED, SKIPPED } from './log-parser.ts';
import { indentOf, pattern } from './python-text.ts';

const WORD = pattern('^\\w');
const STATUSES: Readonly<Record<string, string>> = { '✔': PASSED, '✘': FAILED, '↩': SKIPPED };

/** PHPUnit with `--testdox`: a suite `Name (Class)`, then its tests. */
export const phpUnit: LogParser = lineParser((statuses) => {
  let suite = 'None';
  return (line) => {
    const name = suiteOf(line);
    if (name !== null) {
      suite = name;
      return;
    }
    const indent = indentOf(line);
    const status = STATUSES[line.charAt(indent)];
    if (status === undefined) return;
    const test = line.slice(indent + 1);
    statuses.set(`${suite} > ${test.slice(indentOf(test))}`, status);
  };
});

/**
 * Returns the text before the last bracket of a line that begins with a word and ends with a bracket that is not empty. Returns `null` for
 * other lines.
 */
function suiteOf(line: string): string | null {
  if (!line.endsWith(')') || !WORD.test(line)) return null;
  const end = line.lastIndexOf(' (', line.length - 4);
  return end >= 2 ? line.slice(0, end) : null;
}
