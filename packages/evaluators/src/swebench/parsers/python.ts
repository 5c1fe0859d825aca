import { ERROR, FAILED, type LogParser, lineParser, PASSED, SKIPPED, TestStatuses } from './log-parser.ts';
import { afterLast, before, isSpace, strip, words } from './python-text.ts';

const PASSED_SUFFIXES = [' ... ok', ' ... OK', ' ...  OK'];
const VERSION_TEST = '--version is equivalent to version';
/** A migration that prints its progress on the line of the test that applies it. */
const MIGRATION_ON_TEST_LINE = 'Applying sites.0002_alter_domain_unique...test_no_migrations';

/** The output of Django's test runner with `--verbosity 2`. */
export const django: LogParser = (log, row) => {
  const interrupted = [new SilencedVersion(), new ServerError(), new SystemCheck()];
  return lineParser(
    (statuses) => {
      const lines = new DjangoLines(statuses);
      return (line) => {
        lines.read(strip(line));
        for (const reader of interrupted) reader.read(line);
      };
    },
    (statuses) => {
      for (const { passed } of interrupted) statuses.setAll(passed);
    },
  )(log, row);
};

class DjangoLines {
  private readonly statuses: TestStatuses;
  /** Name of the test whose line was read last. */
  private begun: string | null = null;

  constructor(statuses: TestStatuses) {
    this.statuses = statuses;
  }

  read(stripped: string): void {
    const { statuses } = this;
    let line = stripped;
    if (line.includes(VERSION_TEST)) statuses.set(VERSION_TEST, PASSED);
    if (line.includes(' ... ')) this.begun = before(line, ' ... ');
    const suffix = PASSED_SUFFIXES.find((known) => line.endsWith(known));
    if (suffix !== undefined) {
      if (line.startsWith(MIGRATION_ON_TEST_LINE)) line = strip(line.slice(line.indexOf('...') + 3));
      statuses.set(line.slice(0, -suffix.length), PASSED);
    }
    if (line.includes(' ... skipped')) statuses.set(before(line, ' ... skipped'), SKIPPED);
    this.readFailure(line, ' ... FAIL', 'FAIL:', FAILED);
    this.readFailure(line, ' ... ERROR', 'ERROR:', ERROR);
    if (line.startsWith('ok') && this.begun !== null) statuses.set(this.begun, PASSED);
  }

  private readFailure(line: string, suffix: string, heading: string, status: string): void {
    if (line.endsWith(suffix)) this.statuses.set(before(line, suffix), status);
    if (!line.startsWith(heading)) return;
    const test = words(line, 2)[1];
    if (test === undefined) this.statuses.giveUp();
    else this.statuses.set(test, status);
  }
}

/**
 * Finds tests whose `ok` is on a line of its own, because Django printed a message after the test's name. Only the last three lines are kept.
 * They suffice because white space before the message may contain a line break.
 */
abstract class InterruptedTest {
  readonly passed = new TestStatuses();
  private recent: string[] = [];

  /** Reads a line with its surrounding white space. */
  read(line: string): void {
    const name = line === 'ok' ? this.ends() : null;
    if (name === null) {
      this.recent.push(line);
      if (this.recent.length > 3) this.recent.shift();
      this.begins();
    } else {
      this.passed.set(name, PASSED);
      this.recent = [];
    }
  }

  /** Lets a subclass look for the start of an interrupting message in the line just read. Called for each line that does not end a test. */
  protected begins(): void {}

  /** Returns the name of the test that a line `ok` ends; `null` when there is none. */
  protected abstract ends(): string | null;

  protected get last(): string {
    return this.recent.at(-1) ?? '';
  }

  /**
   * Searches the last line, starting at `from`, for a message that follows the name of a test. A name and a message are separated by `...`
   * between two characters of white space. Returns the name of the test and the position of the message in this line; `null` when there is
   * none.
   */
  protected testBefore(message: string, from = 0): { readonly name: string; readonly at: number } | null {
    const text = this.recent.join('\n');
    const lineStart = text.length - this.last.length;
    for (let at = text.indexOf(message, lineStart + from); at >= 0; at = text.indexOf(message, at + 1)) {
      const dots = at - 4;
      if (dots < 1 || !isSpace(text, at - 1) || !text.startsWith('...', dots) || !isSpace(text, dots - 1)) continue;
      return { name: afterLast(text.slice(0, dots - 1), '\n'), at: at - lineStart };
    }
    return null;
  }
}

/** `name ... Testing against Django installed in …` and, on the same line or a later one, ` silenced).` */
class SilencedVersion extends InterruptedTest {
  private static readonly message = 'Testing against Django installed in ';
  private static readonly end = ' silenced).';
  /** The test whose message has begun. `from` is the position in the last line where the search for the message's end starts. */
  private open: { readonly name: string; from: number } | null = null;

  protected override begins(): void {
    if (this.open !== null) this.open.from = 0;
    const found = this.open === null ? this.testBefore(SilencedVersion.message) : null;
    if (found !== null) this.open = { name: found.name, from: found.at + SilencedVersion.message.length };
  }

  protected override ends(): string | null {
    const { open, last } = this;
    const isClosed = last.endsWith(SilencedVersion.end) && open !== null;
    if (!isClosed || last.length - SilencedVersion.end.length < open.from) return null;
    this.open = null;
    return open.name;
  }
}

/** `name ... Internal Server Error: /path/` */
class ServerError extends InterruptedTest {
  private static readonly message = 'Internal Server Error: /';

  protected override ends(): string | null {
    const found = this.last.endsWith('/') ? this.testBefore(ServerError.message) : null;
    return found !== null && found.at + ServerError.message.length < this.last.length ? found.name : null;
  }
}

/** `name ... System check identified no issues (0 silenced)` */
class SystemCheck extends InterruptedTest {
  private static readonly message = 'System check identified no issues (0 silenced)';

  protected override ends(): string | null {
    const at = this.last.length - SystemCheck.message.length;
    return this.last.endsWith(SystemCheck.message) ? (this.testBefore(SystemCheck.message, at)?.name ?? null) : null;
  }
}

const SYMPY_OUTCOMES: readonly (readonly [suffix: string, status: string])[] = [
  [' E', ERROR],
  [' F', FAILED],
  [' ok', PASSED],
];

/** The output of `bin/test --verbose` of SymPy: a line for each test, and a heading `____ file.py:test ____` for each failure. */
export const sympy: LogParser = (log, row) => {
  const results = new TestStatuses();
  return lineParser(
    (statuses) => (line) => {
      const failure = sympyHeading(line);
      if (failure !== null) statuses.set(failure, FAILED);
      const stripped = strip(line);
      if (!stripped.startsWith('test_')) return;
      const status = SYMPY_OUTCOMES.find(([suffix]) => stripped.endsWith(suffix))?.[1];
      if (status !== undefined) results.set(words(stripped, 1)[0] ?? '', status);
    },
    (statuses) => statuses.setAll(results),
  )(log, row);
};

/** Returns `file.py:test` from a line that has it between its first and its last space; `null` for other lines. */
function sympyHeading(line: string): string | null {
  const first = line.indexOf(' ');
  const last = line.lastIndexOf(' ');
  const suffix = '.py:';
  const at = line.lastIndexOf(suffix, last - suffix.length);
  if (first < 0 || at <= first || at + suffix.length > last) return null;
  return line.slice(first + 1, last);
}
