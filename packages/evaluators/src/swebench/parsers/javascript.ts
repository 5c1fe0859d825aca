import { linesOf } from '../../lines.ts';
import { nextKarma } from './karma.ts';
import {
  END_OF_LOG,
  FAILED,
  type LogParser,
  lineParser,
  PASSED,
  Pauses,
  readAtLineStarts,
  TestStatuses,
} from './log-parser.ts';
import {
  before,
  indentOf,
  isDigit,
  isSpace,
  pattern,
  strip,
  stripEnd,
  withoutEscapeSequences,
  withSingleSpaces,
} from './python-text.ts';

const NUMBERED_LINE = pattern('^\\d+\\)\\s(.*)$');

/** Jasmine, as marked runs it: `1) name` for each failure. Only failures are recorded. */
export const marked: LogParser = lineParser((statuses) => (line) => {
  const name = NUMBERED_LINE.exec(line)?.[1];
  if (name !== undefined) statuses.set(strip(name), FAILED);
});

/** Mocha's reporter `min`, as ESLint runs it: a number, the name and an error. Only failures are recorded. */
export const eslint: LogParser = function* (log) {
  const statuses = new TestStatuses();
  const pauses = new Pauses();
  let from = 0;
  for (let close = log.indexOf(')'); close >= 0; close = log.indexOf(')', Math.max(close + 1, from))) {
    yield* pauses.at(close);
    let number = close;
    while (number > from && isDigit(log, number - 1)) number -= 1;
    if (number === close || number - 2 < from || !isSpace(log, number - 1) || !isSpace(log, number - 2)) continue;
    const error = errorAfter(log, close + 1);
    if (error === null) break;
    statuses.set(withSingleSpaces(log.slice(close + 1, error.start)), FAILED);
    from = error.end;
  }
  return statuses;
};

/**
 * Finds the first white space at `from` or later that is followed by `Error` on the same line, and the end of the last `Error` of that line.
 * The white space may end the previous line. `null` when there is none.
 */
function errorAfter(log: string, from: number): { readonly start: number; readonly end: number } | null {
  let space = from;
  while (space < log.length && !isSpace(log, space)) space += 1;
  const error = log.indexOf('Error', space + 1);
  if (error < 0) return null;
  const text = log.slice(space, error);
  let start = text.lastIndexOf('\n');
  while (start > 0 && isSpace(text, start - 1)) start -= 1;
  const lineEnd = log.indexOf('\n', error);
  const line = log.slice(error, lineEnd < 0 ? undefined : lineEnd);
  return { start: space + Math.max(start, 0), end: error + line.lastIndexOf('Error') + 'Error'.length };
}

const QUARTO_SUITE = /\[(?:smoke|unit)\]/;
const QUARTO_TEMPORARY = ['/tmp/(?:\\w+)\\.qmd', '/tmp/(?:\\w+)/'].map((form) => ({
  first: pattern(form),
  all: pattern(form, 'g'),
}));
const QUARTO_STATUSES: readonly (readonly [text: string, status: string])[] = [
  ['32mok', PASSED],
  ['31mFAILED', FAILED],
];

/** Deno's test runner, as Quarto uses it. Temporary files are numbered in the order in which they appear. */
export const quarto: LogParser = lineParser((statuses) => {
  const numbers = new Map<string, number>();
  const numbered = (line: string): string => {
    let text = line;
    for (const { first, all } of QUARTO_TEMPORARY) {
      const path = first.exec(text)?.[0];
      if (path === undefined) continue;
      const number = numbers.get(path) ?? numbers.size;
      numbers.set(path, number);
      text = text.replaceAll(all, `/tmp/${number}`);
    }
    return text;
  };
  return (original) => {
    if (original.includes('ERRORS') || original.includes('failures:')) return END_OF_LOG;
    if (!QUARTO_SUITE.test(original)) return undefined;
    const line = numbered(original);
    if (isQuartoSummary(line)) return undefined;
    const name = strip(before(line, '...'));
    const status = QUARTO_STATUSES.find(([text]) => line.includes(text))?.[1];
    if (status !== undefined) statuses.set(name, status);
    else if (statuses.get(name) === undefined) statuses.set(name, FAILED);
    return undefined;
  };
});

function isQuartoSummary(line: string): boolean {
  const isCount = ['passed', 'failed', 'steps'].every((word) => line.includes(word));
  return isCount || line.startsWith('test result:') || line.includes('34mINFO');
}

const NEXT_SUITE = pattern('Running:[^\\n]*\\)\\n{3}\\s{2}([^\\n]*)\\n', 'y');
const NEXT_FAILED = pattern('\\s{4}\\d+\\)\\s([^\\n]*)', 'y');
const NEXT_PASSED = pattern('\\s{4}✓\\s([^\\n]*)\\(', 'y');

/** Cypress, as version 1.27 of Fusion Next runs it: `Running: …)` and the name of a suite, then its tests. */
const nextCypress: LogParser = function* (log) {
  const statuses = new TestStatuses();
  const suites = [...nextSuites(log)];
  for (const [index, { name, end }] of suites.entries()) {
    const text = log.slice(end, suites[index + 1]?.start);
    const record = (status: string) => (match: RegExpExecArray) => {
      statuses.set(`${name}: ${strip(match[1] ?? '')}`, status);
    };
    yield* readAtLineStarts(text, NEXT_FAILED, record(FAILED));
    yield* readAtLineStarts(text, NEXT_PASSED, record(PASSED));
  }
  return statuses;
};

/** Finds the headings of suites. When a line has several `Running:`, only the first can begin a heading. */
function* nextSuites(log: string): Generator<{ readonly name: string; readonly start: number; readonly end: number }> {
  for (let start = log.indexOf('Running:'); start >= 0; ) {
    NEXT_SUITE.lastIndex = start;
    const name = NEXT_SUITE.exec(log)?.[1];
    const end = name === undefined ? log.indexOf('\n', start) : NEXT_SUITE.lastIndex;
    if (name !== undefined) yield { name, start, end };
    start = end < 0 ? -1 : log.indexOf('Running:', end);
  }
}

export const next: LogParser = (log, row) => (row.version === '1.27' ? nextCypress : nextKarma)(log, row);

/** Mocha in a browser, as p5.js runs it: `1) suite`, then indented lines until a colon. Only failures are recorded. */
export const p5Js: LogParser = function* (log) {
  const statuses = new TestStatuses();
  const text = yield* withoutXmlBlocks(yield* withoutJsonBlocks(log));
  const pauses = new Pauses();
  for (let at = 0; at < text.length; ) {
    yield* pauses.at(at);
    let start = at;
    while (isSpace(text, start)) start += 1;
    const failure = p5Failure(text, start);
    const name = failure === null ? null : p5Name(failure.text);
    if (name !== null) statuses.set(name, FAILED);
    const lineEnd = text.indexOf('\n', failure?.end ?? start);
    if (lineEnd < 0) break;
    at = lineEnd + 1;
  }
  return statuses;
};

const P5_NUMBER = pattern('\\d+\\)', 'y');
/** Maximum number of characters between the number of a failure and the colon after its name. */
const P5_NAME_CHARS = 1000;

/**
 * Reads a number and the text up to the next colon, which is at most {@link P5_NAME_CHARS} characters away. `end` is the position after the
 * colon.
 */
function p5Failure(text: string, at: number): { readonly text: string; readonly end: number } | null {
  P5_NUMBER.lastIndex = at;
  if (!P5_NUMBER.test(text)) return null;
  const start = P5_NUMBER.lastIndex;
  // A character has at most two code units.
  const length = text.slice(start, start + 2 * P5_NAME_CHARS + 1).indexOf(':');
  const name = text.slice(start, start + length);
  return length < 0 || [...name].length > P5_NAME_CHARS ? null : { text: name, end: start + length + 1 };
}

/** Joins the lines of a name; `null` when a line is not indented more than the line before it. */
function p5Name(text: string): string | null {
  let indent = 0;
  const lines = text.split('\n');
  for (const line of lines) {
    if (indentOf(line) <= indent) return null;
    indent = indentOf(line);
  }
  return lines.map(strip).join(':');
}

/**
 * Removes escape sequences and blocks of JSON. A block begins with a line that ends in `{` or `[`, and ends with the closing bracket on a line
 * of its own.
 */
function* withoutJsonBlocks(log: string): Generator<undefined, string, undefined> {
  const kept: string[] = [];
  let [isInObject, isInList] = [false, false];
  for (const lines of linesOf(log)) {
    for (const coloured of lines) {
      const line = withoutEscapeSequences(coloured);
      const end = stripEnd(line);
      if (end.endsWith('{')) isInObject = true;
      else if (end.endsWith('[')) isInList = true;
      else if (end === '}' && isInObject) isInObject = false;
      else if (end === ']' && isInList) isInList = false;
      else if (!isInObject && !isInList && !isJsonLine(end)) kept.push(line);
    }
    yield;
  }
  return kept.join('\n');
}

function isJsonLine(line: string): boolean {
  return (line.startsWith('{') && line.endsWith('}')) || (line.startsWith('[') && line.endsWith(']'));
}

const TAG = pattern('<(/?)(\\w+)>', 'g');

/**
 * Removes each element from an opening tag to the closing tag that balances it. When closing tags are missing, the last closing tag ends the
 * element, and opening tags that are still open are kept.
 */
function* withoutXmlBlocks(text: string): Generator<undefined, string, undefined> {
  const lastClosing = yield* closingTags(text);
  const pauses = new Pauses();
  const kept: string[] = [];
  let [from, open, depth] = [0, '', 0];
  for (const { index, 0: tag, 1: slash, 2: name = '' } of text.matchAll(TAG)) {
    yield* pauses.at(index);
    const isLast = index === lastClosing.get(name);
    if (depth === 0 && slash === '' && index < (lastClosing.get(name) ?? 0)) {
      kept.push(text.slice(from, index));
      [open, depth] = [name, 1];
    } else if (depth > 0 && name === open) {
      depth += slash === '/' ? -1 : 1;
      if (depth > 0 && !isLast) continue;
      kept.push(`<${open}>`.repeat(depth));
      from = index + tag.length;
      depth = 0;
    }
  }
  return kept.join('') + text.slice(from);
}

/** Returns the position of the last closing tag of each name. */
function* closingTags(text: string): Generator<undefined, Map<string, number>, undefined> {
  const pauses = new Pauses();
  const last = new Map<string, number>();
  for (const { index, 1: slash, 2: name = '' } of text.matchAll(TAG)) {
    yield* pauses.at(index);
    if (slash === '/') last.set(name, index);
  }
  return last;
}
