import { KIB, MIB } from '@floe-rl/core';
import { linesOf } from '../../lines.ts';

/** The statuses that parsers assign. Some parsers copy the first word of a line instead, which may be another text, such as `ERROR:`. */
export const PASSED = 'PASSED';
export const FAILED = 'FAILED';
export const SKIPPED = 'SKIPPED';
export const ERROR = 'ERROR';
export const XFAIL = 'XFAIL';

/**
 * Largest sum of the lengths of the names that a parser may assign, so that a hostile log cannot use unlimited memory. For each name, {@link
 * CHARS_PER_NAME} is added to its length. The sum can be far larger than the log, because some names contain the name of their suite.
 */
const MAX_NAME_CHARS = 64 * MIB;
const CHARS_PER_NAME = 64;
/**
 * Maximum length of a name; longer names are cut. V8 hashes strings of 16,384 characters and more only by their length, so a map of long names
 * would be slow.
 */
const MAX_NAME_LENGTH = 8 * KIB;

/** The status of each test, in the order in which the names first appeared in the log. */
export class TestStatuses {
  private readonly byName = new Map<string, string>();
  private chars = 0;
  private failed = false;

  /** Whether the log cannot be read, because the parser gave up or there are too many names. */
  get isUnreadable(): boolean {
    return this.failed || this.chars > MAX_NAME_CHARS;
  }

  get size(): number {
    return this.byName.size;
  }

  get(name: string): string | undefined {
    return this.byName.get(name.slice(0, MAX_NAME_LENGTH));
  }

  entries(): Iterable<[name: string, status: string]> {
    return this.byName.entries();
  }

  set(name: string, status: string): void {
    this.chars += name.length + CHARS_PER_NAME;
    if (!this.isUnreadable) this.byName.set(name.slice(0, MAX_NAME_LENGTH), status);
  }

  /** Adds statuses that were read from the same log. */
  setAll(others: TestStatuses): void {
    for (const [name, status] of others.entries()) this.set(name, status);
    if (others.isUnreadable) this.failed = true;
  }

  /** Marks the log as unreadable. It is called where the parser of the package `swebench` throws an exception. */
  giveUp(): this {
    this.failed = true;
    return this;
  }
}

/** Facts about a row that some formats depend on. */
export type RowFacts = { readonly instanceId: string; readonly version: string };

/** A running parser. It yields often, so that its caller can let other work on the event loop run. */
export type Parsing = Generator<undefined, TestStatuses, undefined>;

/**
 * Reads the status of each test from the output of a test command. Line breaks are `\n`. The agent's code wrote the output, so the parser's
 * time must be linear in its length.
 */
export type LogParser = (log: string, row: RowFacts) => Parsing;

/** Returned by a reader of lines when the rest of the log must be ignored. */
export const END_OF_LOG = Symbol('end of log');

/** Reads one line. Its result is ignored, unless it is {@link END_OF_LOG}. */
export type LineReader = (line: string) => unknown;

/** Makes a parser that reads line by line. The first argument returns the reader of lines, and the second is called after the last line. */
export function lineParser(
  readerOf: (statuses: TestStatuses, row: RowFacts) => LineReader,
  finish: (statuses: TestStatuses) => void = () => {},
): LogParser {
  return function* (log, row) {
    const statuses = new TestStatuses();
    yield* readLines(log, readerOf(statuses, row), statuses);
    finish(statuses);
    return statuses;
  };
}

/** Reads all lines of a text, until `read` returns {@link END_OF_LOG} or the statuses are unreadable. */
export function* readLines(
  text: string,
  read: LineReader,
  statuses: TestStatuses,
): Generator<undefined, void, undefined> {
  for (const lines of linesOf(text)) {
    for (const line of lines) if (statuses.isUnreadable || read(line) === END_OF_LOG) return;
    yield;
  }
}

/** Number of characters after which a parser pauses. Reading this many characters takes a few milliseconds. */
const CHARS_PER_PAUSE = 64 * KIB;

/** The pauses of a parser that does not read line by line. */
export class Pauses {
  private next = CHARS_PER_PAUSE;

  /** Yields if the parser has advanced far enough since the last pause. */
  *at(position: number): Generator<undefined, void, undefined> {
    if (position < this.next) return;
    this.next = position + CHARS_PER_PAUSE;
    yield;
  }
}

/**
 * Calls `read` with every match of an expression with the flag `y` that begins at the start of a line and after the previous match. Such a
 * match may include line breaks.
 */
export function* readAtLineStarts(
  text: string,
  form: RegExp,
  read: (match: RegExpExecArray) => void,
): Generator<undefined, void, undefined> {
  const pauses = new Pauses();
  for (let at = 0; ; ) {
    yield* pauses.at(at);
    form.lastIndex = at;
    const match = form.exec(text);
    if (match !== null) read(match);
    const end = match === null ? at : at + match[0].length;
    // A match may end in a line break, and the next match may begin directly after it.
    const lineEnd = end > at && text.charAt(end - 1) === '\n' ? end - 1 : text.indexOf('\n', end);
    if (lineEnd < 0) return;
    at = lineEnd + 1;
  }
}
