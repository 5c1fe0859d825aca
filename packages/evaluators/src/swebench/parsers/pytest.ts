import { FAILED, type LogParser, lineParser, PASSED, SKIPPED, type TestStatuses } from './log-parser.ts';
import { before, pattern, words } from './python-text.ts';

const STATUSES = ['FAILED', 'PASSED', 'SKIPPED', 'ERROR', 'XFAIL'];
/** The number of skipped tests, which pytest prints in place of a test id. */
const SKIP_COUNT = pattern('^\\[\\d+\\]$');
const COLOUR_CODE = pattern('\\[\\d+m', 'g');
// biome-ignore lint/suspicious/noControlCharactersInRegex: pytest's colour codes contain control characters
const CONTROL_CHARACTERS = /[\x01-\x1f]/g;

const beginsWithStatus = (line: string): boolean => STATUSES.some((status) => line.startsWith(status));
const isSkipCount = (status: string, name: string): boolean => status === SKIPPED && SKIP_COUNT.test(name);

/** Reads a line such as `FAILED tests/test_a.py::test_b - reason`. The test id ends at the first white space. */
function readSummaryLine(line: string, statuses: TestStatuses, nameOf: (id: string) => string): void {
  if (!beginsWithStatus(line)) return;
  const [status = '', id] = words(line.startsWith(FAILED) ? line.replaceAll(' - ', ' ') : line, 2);
  if (id !== undefined && !isSkipCount(status, id)) statuses.set(nameOf(id), status);
}

/** Shortens a parameter that is an absolute path, such as `test_a[/tmp/x/file]`, to the last part of the path. */
function withShortPath(id: string): string {
  const open = id.indexOf('[');
  const close = id.lastIndexOf(']');
  if (open < 0 || close < open) return id;
  const parameter = id.slice(open + 1, close);
  const isPath = parameter.startsWith('/') && !parameter.startsWith('//') && !parameter.includes('*');
  const shown = isPath ? parameter.slice(parameter.lastIndexOf('/')) : parameter;
  return `${id.slice(0, open)}[${shown}]`;
}

/** The lines of `pytest -rA`. */
export const pytest: LogParser = lineParser((statuses) => (line) => readSummaryLine(line, statuses, (id) => id));

/** The lines of `pytest -rA`, where parameters may be paths that differ from run to run. */
export const pytestOptions: LogParser = lineParser((statuses) => (line) => {
  readSummaryLine(line, statuses, withShortPath);
});

/** The lines of `pytest -rA`, where ids may contain the names of mouse buttons, which differ between versions of Python. */
export const matplotlib: LogParser = lineParser((statuses) => (line) => {
  const renamed = line.replaceAll('MouseButton.LEFT', '1').replaceAll('MouseButton.RIGHT', '3');
  readSummaryLine(renamed, statuses, (id) => id);
});

/**
 * The lines of `pytest -rA`, and of older versions, which print the status after the test id. Ids may contain spaces, and lines may contain
 * colours.
 */
export const pytestWithSpaces: LogParser = lineParser((statuses) => (line) => {
  const plain = line.replaceAll(COLOUR_CODE, '').replaceAll(CONTROL_CHARACTERS, '');
  if (beginsWithStatus(plain)) {
    const [status = '', ...id] = words(plain.startsWith(FAILED) ? before(plain, ' - ') : plain);
    if (id[0] !== undefined && !isSkipCount(status, id[0])) statuses.set(id.join(' '), status);
  } else if (STATUSES.some((status) => plain.endsWith(status))) {
    const id = words(plain);
    const status = id.pop();
    if (id.length > 0 && status !== undefined) statuses.set(id.join(' '), status);
  }
});

const FAILED_WITH_REASON = pattern('FAILED\\s*\\[', 'g');

/** Removes `[…]` after each FAILED. */
function withoutReasons(line: string): string {
  let kept = '';
  let from = 0;
  FAILED_WITH_REASON.lastIndex = 0;
  for (let match = FAILED_WITH_REASON.exec(line); match !== null; match = FAILED_WITH_REASON.exec(line)) {
    const close = line.indexOf(']', FAILED_WITH_REASON.lastIndex);
    if (close < 0) break;
    kept += line.slice(from, match.index) + FAILED;
    from = close + 1;
    FAILED_WITH_REASON.lastIndex = from;
  }
  return kept + line.slice(from);
}

/** The same as {@link pytestWithSpaces}, but ids end at white space, and `[…]` after FAILED is dropped. */
export const pydantic: LogParser = lineParser((statuses) => (line) => {
  const coloured = line.replaceAll(COLOUR_CODE, '').replaceAll(CONTROL_CHARACTERS, '');
  const plain = withoutReasons(coloured);
  if (beginsWithStatus(plain)) {
    const [status = '', id] = words(plain.startsWith(FAILED) ? plain.replaceAll(' - ', ' ') : plain, 2);
    if (id === undefined) statuses.giveUp();
    else statuses.set(id, status);
  } else if (STATUSES.some((status) => plain.endsWith(status))) {
    const [id = '', status] = words(plain, 2);
    if (status === undefined) statuses.giveUp();
    else statuses.set(id, status);
  }
});

/** The lines of `pytest -rA`, and progress lines `id PASSED [ 50%]`. Skipped tests and errors are not recorded. */
export const seaborn: LogParser = lineParser((statuses) => (line) => {
  const [first, second] = words(line, 2);
  if (first === undefined || second === undefined) return;
  if (line.startsWith(FAILED)) statuses.set(second, FAILED);
  else if (line.includes(' PASSED ')) {
    if (second === PASSED) statuses.set(first, PASSED);
  } else if (line.startsWith(PASSED)) statuses.set(second, PASSED);
});
