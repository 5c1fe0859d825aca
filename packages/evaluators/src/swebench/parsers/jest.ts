import { END_OF_LOG, FAILED, type LogParser, lineParser, PASSED, readLines, TestStatuses } from './log-parser.ts';
import { isSpace, lastMatch, pattern, strip } from './python-text.ts';
import { IndentedSuites } from './suites.ts';

/** The durations that may follow the name of a file, in the order in which they are tried. */
const FILE_DURATIONS = ['\\s\\([\\d\\.]+ms\\)', '\\s\\([\\d\\.]+\\ss\\)', '\\s\\([\\d\\.]+s\\)'].map((form) =>
  pattern(form, 'g'),
);

const FILE_STATUSES: Readonly<Record<string, string>> = { PASS: PASSED, FAIL: FAILED };

/** Jest without `--verbose`: `PASS path (1.5 s)`. The name ends at the last duration, if there is one. */
export const jestFiles: LogParser = lineParser((statuses) => (line) => {
  const status = FILE_STATUSES[line.slice(0, 4)];
  if (status === undefined || !isSpace(line, 4)) return;
  const start = 5;
  const duration = FILE_DURATIONS.map((form) => lastMatch(line, form, start)).find((match) => match !== null);
  statuses.set(line.slice(start, duration?.index), status);
});

const TIME_AT_END = pattern('\\s\\([\\d\\.]+\\s?(?:ms|s)\\)$');

/** Jest without `--verbose`, as Grommet's tests print it. A file that passed once counts as passed. */
export const grommet: LogParser = (log, row) => {
  const [failed, passed] = [new TestStatuses(), new TestStatuses()];
  const readers = [new FileNames('FAIL', failed, FAILED), new FileNames('PASS', passed, PASSED)];
  return lineParser(
    () => (line) => {
      for (const reader of readers) reader.read(line);
    },
    (statuses) => {
      if (log.endsWith('\n')) for (const reader of readers) reader.end();
      statuses.setAll(failed);
      statuses.setAll(passed);
    },
  )(log, row);
};

/** Reads the name after a word at the start of a line, or on the next line. */
class FileNames {
  private readonly word: string;
  private readonly statuses: TestStatuses;
  private readonly status: string;
  private isNameNext = false;

  constructor(word: string, statuses: TestStatuses, status: string) {
    this.word = word;
    this.statuses = statuses;
    this.status = status;
  }

  read(line: string): void {
    if (this.isNameNext) this.record(line);
    else if (line.startsWith(this.word) && isSpace(line, this.word.length))
      this.record(line.slice(this.word.length + 1));
    else this.isNameNext = line === this.word;
  }

  /** Called at the end of a log that ends in a line break. Its last line is empty. */
  end(): void {
    if (this.isNameNext) this.record('');
  }

  private record(text: string): void {
    this.isNameNext = false;
    const name = strip(text);
    const at = name.search(TIME_AT_END);
    this.statuses.set(at < 0 ? name : name.slice(0, at), this.status);
  }
}

const CALYPSO_COMMAND = ' ./node_modules/.bin/jest ';
const CALYPSO_STATUSES: Readonly<Record<string, string>> = { '✓': PASSED, '✕': FAILED };
const MILLISECONDS = pattern('\\(\\d+ms\\)');
const MILLISECONDS_AT_END = pattern('\\(\\d+ms\\)$');

/** Jest with `--verbose`, run for one file after another. The output after each printed command is read separately. */
export const calypso: LogParser = function* (log) {
  const statuses = new TestStatuses();
  const suites = new IndentedSuites();
  for (const run of log.split(CALYPSO_COMMAND).slice(1)) {
    const read = (line: string): unknown => {
      if (line.startsWith('Test Suites') || line.startsWith('  ● ')) return END_OF_LOG;
      const stripped = strip(line);
      const status = CALYPSO_STATUSES[stripped.charAt(0)];
      if (status === undefined) return suites.read(line);
      const name = calypsoName(line, stripped);
      return name === null ? statuses.giveUp() : statuses.set(strip(calypsoId(suites, name)), status);
    };
    yield* readLines(run, read, statuses);
  }
  return statuses;
};

function calypsoId(suites: IndentedSuites, name: string): string {
  return `${suites.headings.join(' - ')} - ${name}`;
}

/** Returns the name after an indented sign, without its duration; `null` when the line has another form. */
function calypsoName(line: string, stripped: string): string | null {
  const sign = line.indexOf(stripped.charAt(0));
  if (sign === 0 || !isSpace(line, sign + 1)) return null;
  const name = line.slice(sign + 2);
  if (!MILLISECONDS.test(line)) return name;
  const end = name.search(MILLISECONDS_AT_END);
  return end < 0 ? null : name.slice(0, end);
}
