import { nextEventLoopTurn } from '@floe-rl/core';
import { linesOf } from './lines.ts';

/** The statuses that a test runner may report for a test id. */
export type TestStatus = 'PASSED' | 'FAILED' | 'ERROR' | 'SKIPPED';

/**
 * Status of a test id in a report. `CONFLICTING` means that the test id was reported with different statuses. It is not equal to any expected
 * status, so an agent gains nothing by printing a forged line next to the genuine one.
 */
export type ReportedStatus = TestStatus | 'CONFLICTING';

const LINE = /^(PASSED|FAILED|ERROR|SKIPPED)[ \t]+(\S.*)$/;
/** Matches the colour sequences for terminals that some test runners print. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: colour sequences begin with the escape character
const COLOUR = /\u001b\[[0-9;]*m/g;
/** Text between a test id and the reason of the test's failure. A test id may itself contain this text. */
const REASON_SEPARATOR = ' - ';
/** Maximum number of unexpected test ids that are kept, so that the report of a hostile program uses a bounded amount of memory. */
const MAX_UNEXPECTED = 100_000;

/** The statuses and counts from the report of a test command. */
export type TestReport = {
  /** Statuses of the expected test ids that were reported. */
  readonly expected: ReadonlyMap<string, ReportedStatus>;
  /** Number of different test ids that were reported and not expected, at most {@link MAX_UNEXPECTED}. */
  readonly unexpectedCount: number;
};

/**
 * Reads the status of each test id from the outputs of a test command. Each is reported in a line of the form `PASSED|FAILED|ERROR|SKIPPED
 * <test id>`, optionally followed by ` - <reason>`. When a test id itself contains this separator, the ids in `expected` determine where the
 * id ends.
 *
 * The agent's code writes the outputs, so the time is linear in their length, and other work on the event loop runs in between. Rejects with
 * the reason of `signal`.
 */
export async function readReport(
  outputs: readonly string[],
  expected: ReadonlySet<string>,
  signal: AbortSignal,
): Promise<TestReport> {
  const finder = new TestIdFinder(expected);
  const reported = new Map<string, ReportedStatus>();
  const unexpected = new Set<string>();
  const read = (line: string): void => {
    const match = LINE.exec(line.includes('\u001b') ? line.replaceAll(COLOUR, '') : line);
    if (match === null) return;
    const status = match[1] as TestStatus;
    const testId = finder.find((match[2] as string).trimEnd());
    if (expected.has(testId)) {
      const earlier = reported.get(testId);
      reported.set(testId, earlier === undefined || earlier === status ? status : 'CONFLICTING');
    } else if (unexpected.size < MAX_UNEXPECTED) unexpected.add(testId);
  };
  for (const output of outputs) {
    for (const lines of linesOf(output)) {
      for (const line of lines) read(line);
      await nextEventLoopTurn();
      signal.throwIfAborted();
    }
  }
  return { expected: reported, unexpectedCount: unexpected.size };
}

/** Finds the test id at the start of a line's text. The time is linear in the length of the text, whatever the agent's code has printed. */
class TestIdFinder {
  private readonly expected: ReadonlySet<string>;
  private readonly longest: number;
  /**
   * Maximum number of separators inside an expected test id. Only this many separators of a line, and the next one, are tried as the end of
   * a test id.
   */
  private readonly maxSeparators: number;

  constructor(expected: ReadonlySet<string>) {
    this.expected = expected;
    let [longest, maxSeparators] = [0, 0];
    for (const testId of expected) {
      longest = Math.max(longest, testId.length);
      maxSeparators = Math.max(maxSeparators, separatorsIn(testId + REASON_SEPARATOR) - 1);
    }
    this.longest = longest;
    this.maxSeparators = maxSeparators;
  }

  /** Returns the expected test id that `text` begins with, or else the text before the first separator. */
  find(text: string): string {
    if (this.isExpected(text)) return text;
    const first = text.indexOf(REASON_SEPARATOR);
    let cut = first;
    for (let tried = 0; cut >= 0 && cut <= this.longest && tried <= this.maxSeparators; tried += 1) {
      const head = text.slice(0, cut);
      if (this.isExpected(head)) return head;
      cut = text.indexOf(REASON_SEPARATOR, cut + 1);
    }
    return first < 0 ? text : text.slice(0, first);
  }

  private isExpected(text: string): boolean {
    return text.length <= this.longest && this.expected.has(text);
  }
}

/** Returns how often the separator occurs in a text; occurrences that overlap count separately. */
function separatorsIn(text: string): number {
  let count = 0;
  for (let at = text.indexOf(REASON_SEPARATOR); at >= 0; at = text.indexOf(REASON_SEPARATOR, at + 1)) count += 1;
  return count;
}
