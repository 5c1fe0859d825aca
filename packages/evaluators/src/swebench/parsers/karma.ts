import { END_OF_LOG, FAILED, type LogParser, lineParser, PASSED, readLines, TestStatuses } from './log-parser.ts';
import { afterLast, indentOf, isSpace, strip, withoutEscapeSequences } from './python-text.ts';
import { IndentedSuites } from './suites.ts';

const KARMA_SIGNS: Readonly<Record<string, string>> = { '✔': PASSED, '✖': FAILED };

/** Karma's reporter `spec`, as Preact's tests print it: tests after indented headings, between `Starting browser` and `SUMMARY:`. */
export const karma: LogParser = lineParser((statuses) => {
  let isStarted = false;
  let indent = -1;
  const suites: string[] = [];
  const readHeading = (heading: KarmaLine): void => {
    if (heading.indent === 0 || heading.indent === indent) return;
    if (heading.indent > indent) suites.push(heading.name);
    else if (suites.pop() === undefined) statuses.giveUp();
    indent = heading.indent;
  };
  return (line) => {
    if (line.startsWith('SUMMARY:')) return END_OF_LOG;
    if (line.includes('Starting browser')) isStarted = true;
    else if (isStarted) {
      const read = readKarmaLine(line);
      if (read?.status !== undefined) statuses.set([...suites, read.name].join(' > '), read.status);
      else if (read !== null) readHeading(read);
    }
    return undefined;
  };
});

type KarmaLine = { readonly indent: number; readonly status: string | undefined; readonly name: string };

/** Reads a heading or a test. One space comes before the name and does not count as indentation. `null` for a line without such a space. */
function readKarmaLine(line: string): KarmaLine | null {
  const indent = indentOf(line);
  const status = KARMA_SIGNS[line.charAt(indent)];
  if (status !== undefined && isSpace(line, indent + 1)) return { indent, status, name: line.slice(indent + 2) };
  return indent === 0 ? null : { indent: indent - 1, status: undefined, name: line.slice(indent) };
}

const NEXT_COMMAND = ' xvfb-run ';
const MESSAGE_STARTS = ['ERROR', 'LOG', 'WARN', 'Check', 'in'];

/** Karma with indented suites, as the tests of Fusion Next print it. The output after each printed command is read separately. */
export const nextKarma: LogParser = function* (log) {
  const statuses = new TestStatuses();
  const suites = new IndentedSuites();
  const read = (line: string): unknown => {
    if (line.startsWith('TOTAL')) return END_OF_LOG;
    const stripped = strip(line);
    if (MESSAGE_STARTS.some((start) => stripped.startsWith(start))) return undefined;
    const [failed, passed] = [line.indexOf('✗'), line.indexOf('✓')];
    const sign = failed >= 0 ? failed : passed;
    if (sign < 0) return suites.read(line);
    const test = line.slice(sign + 1);
    return statuses.set(suites.nameOf(test.slice(indentOf(test))), failed >= 0 ? FAILED : PASSED);
  };
  for (const run of withoutAssertionErrors(withoutEscapeSequences(log)).split(NEXT_COMMAND).slice(1)) {
    yield* readLines(afterLast(run, 'Starting browser Chrome'), read, statuses);
  }
  return statuses;
};

const ASSERTION_ERROR = 'AssertionError:';

/** Removes the messages of failed assertions, which begin with `#` and end at an empty line. */
function withoutAssertionErrors(log: string): string {
  const kept: string[] = [];
  let from = 0;
  for (let at = log.indexOf(ASSERTION_ERROR); at >= 0; at = log.indexOf(ASSERTION_ERROR, Math.max(at + 1, from))) {
    let message = at + ASSERTION_ERROR.length;
    if (!isSpace(log, message)) continue;
    while (isSpace(log, message)) message += 1;
    if (log.charAt(message) !== '#') continue;
    const end = log.indexOf('\n\n', message + 1);
    if (end < 0) break;
    kept.push(log.slice(from, at));
    from = end + 2;
  }
  return kept.join('') + log.slice(from);
}
