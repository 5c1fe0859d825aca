import { FAILED, type LogParser, Pauses, readAtLineStarts, TestStatuses } from './log-parser.ts';
import { isSpace, pattern, withoutEscapeSequences, withSingleSpaces } from './python-text.ts';

/** A failed test: its name, and the position at which the search for the next one begins. */
type Failure = { readonly name: string; readonly end: number };

/** A form in which Karma reports a failed test: the browser, the name of the test, and FAILED at the end of a line. */
type FailureForm = {
  /** Text at the start of every name of the browser in a log. */
  readonly literal: string;
  /** Matches the text from the browser to the name of the test. The expression has the flag `y`. */
  readonly browser: RegExp;
  /**
   * Reads the name that begins at `start`, in a line that ends at `lineEnd`. Returns `null` when the line has another form. Names that begin
   * later in this line then need not be tried.
   */
  readonly read: (log: string, start: number, lineEnd: number) => Failure | null;
};

/** Calls `record` with the names of the failed tests that a log reports in a form. */
function* readFailures(
  log: string,
  { literal, browser, read }: FailureForm,
  record: (name: string) => void,
): Generator<undefined, void, undefined> {
  const pauses = new Pauses();
  /** End of the last line that turned out to have another form. */
  let tried = -1;
  let next = 0;
  for (let at = log.indexOf(literal); at >= 0; at = log.indexOf(literal, next)) {
    yield* pauses.at(at);
    next = at + 1;
    browser.lastIndex = at;
    if (!browser.test(log) || browser.lastIndex <= tried) continue;
    const lineEnd = log.indexOf('\n', browser.lastIndex);
    const failure = read(log, browser.lastIndex, lineEnd < 0 ? log.length : lineEnd);
    if (failure === null) tried = lineEnd < 0 ? log.length : lineEnd;
    else {
      record(failure.name);
      next = failure.end;
    }
  }
}

/** Reads `name FAILED` and a line break. */
function failedLine(log: string, start: number, lineEnd: number): Failure | null {
  const end = lineEnd - FAILED.length;
  if (lineEnd === log.length || end < start || !log.startsWith(FAILED, end)) return null;
  return { name: log.slice(start, end), end: lineEnd + 1 };
}

/** Reads `name`, white space, `FAILED` and a line break. The white space may be a line break. */
function failedAfterSpace(log: string, start: number, lineEnd: number): Failure | null {
  if (log.startsWith(`\n${FAILED}\n`, lineEnd)) {
    return { name: log.slice(start, lineEnd), end: lineEnd + FAILED.length + 2 };
  }
  const failure = failedLine(log, start, lineEnd);
  if (failure === null || failure.name === '' || !isSpace(failure.name, failure.name.length - 1)) return null;
  return { ...failure, name: failure.name.slice(0, -1) };
}

const LINUX = '(Linux';
const LINUX_BOX = pattern('\\(Linux\\sx86_64\\)\\s', 'y');

/** Reads a version, the last `(Linux x86_64)` between white space, `name FAILED` and a line break. */
function failedAfterLinux(log: string, start: number, lineEnd: number): Failure | null {
  const line = log.slice(start, lineEnd + 1 + LINUX.length);
  for (let at = line.lastIndexOf(LINUX); at > 0; at = line.lastIndexOf(LINUX, at - 1)) {
    LINUX_BOX.lastIndex = start + at;
    if (!isSpace(line, at - 1) || !LINUX_BOX.test(log)) continue;
    const nameStart = LINUX_BOX.lastIndex;
    const nameEnd = log.indexOf('\n', nameStart);
    const failure = nameEnd < 0 ? null : failedLine(log, nameStart, nameEnd);
    if (failure !== null) return failure;
    if (nameEnd === lineEnd || lineEnd === log.length) return null;
  }
  return null;
}

/** Reads the content of the bracket after the browser, and `name FAILED` at the end of a line. */
function failedAfterBracket(log: string, start: number, lineEnd: number): Failure | null {
  const end = lineEnd - FAILED.length;
  if (end < start || !log.startsWith(FAILED, end)) return null;
  const line = log.slice(start, end);
  for (let at = line.indexOf(')', 1); at >= 0; at = line.indexOf(')', at + 1)) {
    if (isSpace(line, at + 1)) return { name: line.slice(at + 2), end: lineEnd };
  }
  return null;
}

/** Makes a parser that reads the failed tests of each form. Passed tests are not recorded. */
function failureParser(forms: readonly FailureForm[], textOf: (log: string) => string = (log) => log): LogParser {
  return function* (log) {
    const statuses = new TestStatuses();
    const text = textOf(log);
    for (const form of forms) yield* readFailures(text, form, (name) => statuses.set(name, FAILED));
    return statuses;
  };
}

/** Karma in Chrome, as Chart.js runs it: `Chrome 1.2 (Linux) name FAILED` */
export const chartJs: LogParser = failureParser(
  [
    {
      literal: 'Chrome',
      browser: pattern('Chrome\\s[\\d\\.]+(?!\\n)\\s\\(', 'y'),
      read: failedAfterBracket,
    },
  ],
  withoutEscapeSequences,
);

/** Karma in a browser, as bpmn-js runs it: `HeadlessChrome 1.2 (Linux 0.0.0) name FAILED` */
export const bpmnJs: LogParser = failureParser([
  {
    literal: '2KPhantomJS',
    browser: pattern('2KPhantomJS\\s[\\d\\.]+\\s\\(Linux\\s[\\d\\.]+\\)\\s', 'y'),
    read: failedLine,
  },
  {
    literal: '2KPhantomJS',
    browser: pattern('2KPhantomJS\\s[\\d\\.]+\\s\\(Linux\\sx86_64\\)\\s', 'y'),
    read: failedLine,
  },
  { literal: 'Chrome', browser: pattern('Chrome\\sHeadless\\s', 'y'), read: failedAfterLinux },
  {
    literal: 'HeadlessChrome',
    browser: pattern('HeadlessChrome\\s[\\d\\.]+\\s\\(Linux\\s[\\d\\.]+\\)\\s', 'y'),
    read: failedLine,
  },
]);

const OPEN_LAYERS_FORMS: readonly FailureForm[] = [
  {
    literal: 'Chrome',
    browser: pattern('Chrome\\sHeadless\\s[\\d\\.]+\\s\\(Linux\\s\\S+\\)\\s', 'y'),
    read: failedAfterSpace,
  },
  {
    literal: 'Chrome',
    browser: pattern('Chrome\\s[\\d\\.]+\\s\\(Linux\\s\\S+\\)\\s', 'y'),
    read: failedLine,
  },
];
const NUMBERED = pattern('\\s{2}\\d+\\)', 'y');
const MISMATCH = pattern('case\\s([^\\n]*):\\smismatch', 'y');

/** Karma, Mocha and the rendering tests of OpenLayers. Passed tests are not recorded. */
export const openLayers: LogParser = function* (log) {
  const statuses = new TestStatuses();
  const record = (name: string): void => statuses.set(withSingleSpaces(name), FAILED);
  for (const form of OPEN_LAYERS_FORMS) yield* readFailures(log, form, record);
  yield* readErrors(log, record);
  yield* readAtLineStarts(log, MISMATCH, ([, name = '']) => record(name));
  return statuses;
};

/** Reads the text between a number and `Error:`. The number is at the start of a line, after two characters of white space. */
function* readErrors(log: string, record: (name: string) => void): Generator<undefined, void, undefined> {
  const pauses = new Pauses();
  for (let at = 0; ; ) {
    yield* pauses.at(at);
    NUMBERED.lastIndex = at;
    let end = at;
    if (NUMBERED.test(log)) {
      const start = NUMBERED.lastIndex;
      end = log.indexOf('Error:', start);
      if (end < 0) return;
      record(log.slice(start, end));
    }
    at = log.indexOf('\n', end) + 1;
    if (at === 0) return;
  }
}
