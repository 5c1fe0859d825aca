/** The statuses that a test runner may report for a test id. */
export type TestStatus = 'PASSED' | 'FAILED' | 'ERROR' | 'SKIPPED';

/**
 * Status of a test id in a report. `CONFLICTING` means that it was reported with different statuses. It equals no expected status, so that
 * a forged line cannot replace the genuine one.
 */
export type ReportedStatus = TestStatus | 'CONFLICTING';

const LINE = /^(PASSED|FAILED|ERROR|SKIPPED)[ \t]+(\S.*)$/;
/** Matches the colour sequences for terminals that some test runners print. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: colour sequences begin with the escape character
const COLOUR = /\u001b\[[0-9;]*m/g;
/** Separates a test id from the reason of its failure. A test id may itself contain this text. */
const REASON_SEPARATOR = ' - ';

/**
 * Reads the status of each test id from the output of a test command, which reports it in lines of the form `PASSED|FAILED|ERROR|SKIPPED
 * <test id>`, optionally followed by ` - <reason>`. Where a test id itself contains this separator, the ids in `expected` decide where the
 * id ends.
 */
export function parseReport(output: string, expected: ReadonlySet<string>): Map<string, ReportedStatus> {
  const reported = new Map<string, ReportedStatus>();
  for (const line of output.replaceAll(COLOUR, '').split(/\r\n|\r|\n/)) {
    const match = LINE.exec(line);
    if (match === null) continue;
    const status = match[1] as TestStatus;
    const testId = testIdIn((match[2] as string).trimEnd(), expected);
    const earlier = reported.get(testId);
    reported.set(testId, earlier === undefined || earlier === status ? status : 'CONFLICTING');
  }
  return reported;
}

function testIdIn(text: string, expected: ReadonlySet<string>): string {
  if (expected.has(text)) return text;
  const first = text.indexOf(REASON_SEPARATOR);
  for (let cut = first; cut >= 0; cut = text.indexOf(REASON_SEPARATOR, cut + 1)) {
    const head = text.slice(0, cut);
    if (expected.has(head)) return head;
  }
  return first < 0 ? text : text.slice(0, first);
}
