import { FAILED, type LogParser, lineParser, PASSED, SKIPPED } from './log-parser.ts';
import { lastMatch, pattern, strip, stripEnd, words } from './python-text.ts';

/** A test that a line reports: its name, and the word or sign that stands for its status. */
type Reported = readonly [name: string, sign: string];

/**
 * Makes a parser for logs in which one line, without its surrounding white space, reports one test. `read` returns `null` for other lines.
 * Tests with a sign that has no status are ignored.
 */
function oneLine(statusOf: Readonly<Record<string, string>>, read: (line: string) => Reported | null): LogParser {
  const statusOfSign = new Map(Object.entries(statusOf));
  return lineParser((statuses) => (line) => {
    const [name, sign = ''] = read(strip(line)) ?? [];
    const status = statusOfSign.get(sign);
    if (name !== undefined && status !== undefined) statuses.set(name, status);
  });
}

/** Reads lines with a sign and then a name. Group 1 of `form` is the sign, and group 2 is the name. */
function signThenName(form: RegExp, edit: (name: string, sign: string) => string = (name) => name) {
  return (line: string): Reported | null => {
    const [, sign = '', name = ''] = form.exec(line) ?? [];
    return name === '' ? null : [edit(name, sign), sign];
  };
}

/** Removes the match of an expression from the end of a name, unless nothing would be left. */
function withoutEnd(name: string, end: RegExp): string {
  const at = name.search(end);
  return at > 0 ? name.slice(0, at) : name;
}

const DURATION_IN_BRACKETS = pattern('\\s\\(\\d+\\s*m?s\\)$');
const DURATION_OR_SKIPPED = pattern('\\s(?:\\d+\\s*m?s?|\\[skipped\\])$');

/** `jest --verbose` */
export const jest = oneLine(
  { '✓': PASSED, '✕': FAILED, '○': SKIPPED },
  signThenName(pattern('^(✓|✕|○)\\s(.+)$'), (name) => strip(withoutEnd(name, DURATION_IN_BRACKETS))),
);

/** `jest --json`, converted to lines `[PASSED] name`. */
export const jestJson = oneLine({ PASSED, FAILED }, signThenName(pattern('^\\[(PASSED|FAILED)\\]\\s(.+)$')));

/** `vitest --reporter=verbose` */
export const vitest = oneLine(
  { '✓': PASSED, '×': FAILED, '↓': SKIPPED },
  signThenName(pattern('^(✓|×|↓)\\s(.+)$'), (name) => withoutEnd(name, DURATION_OR_SKIPPED)),
);

/** The Test Anything Protocol. */
export const tap = oneLine({ ok: PASSED, 'not ok': FAILED }, signThenName(pattern('^(ok|not ok) \\d+ (.+)$')));

/** The test suites of Redis and Valkey. The name of a failed test is followed by `in FILE`. */
export const redis = oneLine(
  { ok: PASSED, err: FAILED, skip: SKIPPED, ignore: SKIPPED },
  signThenName(pattern('^\\[(ok|err|skip|ignore)\\]:\\s(.+)$'), (name, sign) => {
    const timeless = withoutEnd(name, DURATION_IN_BRACKETS);
    return sign === 'err' ? withoutFile(timeless) : timeless;
  }),
);

const FILE_AT_END = pattern('\\sin\\s+\\S+$');

function withoutFile(name: string): string {
  const at = name.search(FILE_AT_END);
  return at < 0 ? name : stripEnd(name.slice(0, at));
}

/** The tests of jq: `PASS: name`. */
export const jq = oneLine({ PASS: PASSED, FAIL: FAILED }, signThenName(pattern('^(PASS|FAIL):\\s(.+)$')));

/** The tests of MicroPython: `pass  name`. */
export const micropython = oneLine(
  { pass: PASSED, FAIL: FAILED, skip: SKIPPED },
  signThenName(pattern('^(pass|FAIL|skip)\\s+(.+)$')),
);

/** Ant's task `junit`, as Lombok uses it. */
export const ant = oneLine(
  { PASS: PASSED, FAIL: FAILED, ERR: FAILED },
  signThenName(pattern('^\\[junit\\]\\s+\\[(PASS|FAIL|ERR)\\]\\s+(.*)$')),
);

/** Returns the position of the last ` (` with at least two characters after it; -1 when there is none. */
function lastBracketWithContent(line: string): number {
  return line.lastIndexOf(' (', line.length - 4);
}

/** `go test -v`: `--- PASS: name (0.00s)` */
export const goTest = oneLine({ PASS: PASSED, FAIL: FAILED, SKIP: SKIPPED }, (line) => {
  const sign = /^--- (PASS|FAIL|SKIP): ./su.exec(line)?.[1];
  if (sign === undefined || !line.endsWith(')')) return null;
  const start = '--- PASS: '.length;
  const end = lastBracketWithContent(line);
  return end > start ? [line.slice(start, end), sign] : null;
});

/** `cargo test`: `test name ... ok` */
export const cargo = oneLine({ ok: PASSED, FAILED }, (line) => {
  const [test, name = '', dots, outcome = '', more] = words(line, 5);
  return test === 'test' && dots === '...' && more === undefined ? [name, outcome] : null;
});

const GOOGLE_TEST_SIGN = pattern('\\[\\s*(OK|FAILED)\\s*\\]\\s', 'g');
const BRACKET = pattern('\\s\\(', 'g');

/** GoogleTest: `[       OK ] suite.name (0 ms)` */
export const googleTest = oneLine({ OK: PASSED, FAILED }, (line) => {
  if (!line.endsWith(')')) return null;
  const end = lastMatch(line, BRACKET)?.index ?? -1;
  let reported: Reported | null = null;
  for (const match of line.matchAll(GOOGLE_TEST_SIGN)) {
    const start = match.index + match[0].length;
    if (start <= end) reported = [line.slice(start, end), match[1] ?? ''];
  }
  return reported;
});

/** Minitest with `-v`: `Class#test = 0.01 s = .`. The name ends at the last `. ` before the sign. */
export const minitest = oneLine({ '.': PASSED, F: FAILED, E: FAILED }, (line) => {
  const sign = Math.max(line.lastIndexOf('.'), line.lastIndexOf('F'), line.lastIndexOf('E'));
  const equals = line.lastIndexOf('=', sign - 1);
  const end = line.lastIndexOf('. ', equals - 2);
  if (sign < 1 || equals < 2 || end < 1) return null;
  return [line.slice(0, end), line.charAt(sign)];
});

const DOTS = / \.+F?/gu;

/** Cucumber with `--format progress`: the name, a space, and a dot for each step; `F` is a step that failed. */
export const cucumber = oneLine({ '.': PASSED, F: FAILED }, (line) => {
  let reported: Reported | null = null;
  for (const match of line.matchAll(DOTS)) {
    const sign = match[0].at(-1) ?? '';
    // A single dot is not followed by the sign.
    if (match[0] !== ' .') reported = [line.slice(0, match.index), sign];
  }
  return reported;
});

const TEST_UNIT_SIGN = pattern(':\\s+(?:(\\.)|([EFO])(?!\\w))', 'g');

/** Ruby's test-unit with `-v`: `test: name:  .: (0.001)` */
export const testUnit = oneLine({ '.': PASSED, E: FAILED, F: FAILED, O: SKIPPED }, (line) => {
  const last = lastMatch(line, TEST_UNIT_SIGN);
  if (last === null || last.index === 0) return null;
  const heading = 'test: ';
  const start = line.startsWith(heading) && last.index > heading.length ? heading.length : 0;
  return [line.slice(start, last.index), last[1] ?? last[2] ?? ''];
});

const RSPEC_SIGN = / - (passed|failed)/gu;

/** RSpec's JSON, converted to lines `name - passed`. */
export const rspec = oneLine({ passed: PASSED, failed: FAILED }, (line) => {
  const last = lastMatch(line, RSPEC_SIGN, 1);
  return last === null ? null : [line.slice(0, last.index), last[1] ?? ''];
});
