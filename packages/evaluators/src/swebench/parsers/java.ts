import { FAILED, type LogParser, lineParser, PASSED, type TestStatuses } from './log-parser.ts';
import { isSpace, strip, words } from './python-text.ts';

/** Maven. Its logs do not name passed tests. Each test is run by a separate command, and the parser reads each command and its result. */
export const maven: LogParser = (log, row) => {
  const runs = new MavenRuns();
  return lineParser(
    (statuses) => (line) => runs.read(strip(line), statuses),
    (statuses) => runs.finish(statuses),
  )(log, row);
};

const TEST_OPTION = '-Dtest=';
const MAVEN_RESULTS: readonly (readonly [end: string, status: string])[] = [
  ['BUILD SUCCESS', PASSED],
  ['BUILD FAILURE', FAILED],
];

/** Assigns results to tests: the first result to the first test, and so on. Output of the shell and of Maven may be interleaved. */
class MavenRuns {
  private readonly tests: string[] = [];
  private started = 0;
  /** Results that came before a test had been started. */
  private readonly early: string[] = [];

  read(line: string, statuses: TestStatuses): void {
    const test = testOption(line);
    if (test !== null) this.tests.push(test);
    const status = MAVEN_RESULTS.find(([end]) => line.endsWith(end))?.[1];
    if (status === undefined) return;
    if (this.started < this.tests.length) this.assign(status, statuses);
    else this.early.push(status);
  }

  finish(statuses: TestStatuses): void {
    for (const status of this.early) if (this.started < this.tests.length) this.assign(status, statuses);
  }

  private assign(status: string, statuses: TestStatuses): void {
    statuses.set(this.tests[this.started] ?? '', status);
    this.started += 1;
  }
}

/** Returns the value of the last option `-Dtest=` that has a value; `null` when there is none. */
function testOption(line: string): string | null {
  for (let at = line.lastIndexOf(TEST_OPTION); at >= 0; at = at === 0 ? -1 : line.lastIndexOf(TEST_OPTION, at - 1)) {
    const value = at + TEST_OPTION.length;
    if (value < line.length && !isSpace(line, value)) return words(line.slice(value), 1)[0] ?? null;
  }
  return null;
}

const GRADLE_STATUSES = [PASSED, FAILED];

/** Gradle: `class > test PASSED`, where the status may be on a later line. */
export const gradle: LogParser = lineParser((statuses) => {
  let begun: string | null = null;
  return (line) => {
    const stripped = strip(line);
    const status = GRADLE_STATUSES.find((known) => stripped.endsWith(known));
    const name = status === undefined ? null : nameBefore(stripped, status);
    if (status !== undefined && name !== null) {
      statuses.set(name, status);
      begun = null;
    } else if (isGradleName(stripped)) begun = stripped;
    else if (begun !== null && stripped === status) {
      statuses.set(begun, status);
      begun = null;
    }
  };
});

/**
 * Returns the text before a status at the end of a line, without the character of white space between them. Returns `null` when the line does
 * not end with the status.
 */
function nameBefore(line: string, status: string): string | null {
  const end = line.length - status.length - 1;
  return end < 2 || line.startsWith('>') || !isSpace(line, end) ? null : line.slice(0, end);
}

function isGradleName(line: string): boolean {
  const [suite = '>', arrow, test, more] = words(line, 4);
  return !suite.startsWith('>') && arrow === '>' && test !== undefined && more === undefined;
}
