import { nextEventLoopTurn } from '@floe-rl/core';
import { partsOf } from '../lines.ts';
import { ERROR, FAILED, type LogParser, type RowFacts, type TestStatuses } from './parsers/log-parser.ts';
import { pattern } from './parsers/python-text.ts';

/** Texts that the package `swebench` (5.0.2) writes into the log of an evaluation or reads from it. */
export const START_MARKER = '>>>>> Start Test Output';
export const END_MARKER = '>>>>> End Test Output';
export const EXIT_STATUS_MARKER = '>>>>> Test Exit Code';
const FAILURE_MARKERS = [
  '>>>>> Patch Apply Failed',
  '>>>>> Reset Failed',
  '>>>>> Tests Errored',
  '>>>>> Tests Timed Out',
];

/**
 * The reason why a log proves nothing:
 * - `failure_marker`: it contains a marker of a failed evaluation;
 * - `markers_missing`: the markers around the output of the tests are missing;
 * - `log_unreadable`: the parser of the repository cannot read it;
 * - `tests_not_run`: it reports no test, and has no other sign that the tests ran;
 * - `exit_status_unexplained`: the test command failed, but no test did.
 */
export type InvalidLog =
  | 'failure_marker'
  | 'markers_missing'
  | 'log_unreadable'
  | 'tests_not_run'
  | 'exit_status_unexplained';

export type ReadLog =
  | { readonly valid: true; readonly statuses: TestStatuses }
  | { readonly valid: false; readonly reason: InvalidLog };

/**
 * Reads the statuses of the tests from the log of an evaluation, by the rules of `swebench` 5.0.2. Other work on the event loop runs in
 * between. Rejects with the reason of `signal`.
 */
export async function readLog(output: string, parser: LogParser, row: RowFacts, signal: AbortSignal): Promise<ReadLog> {
  const log = await completed(withoutCarriageReturns(output), signal);
  if (FAILURE_MARKERS.some((marker) => log.includes(marker))) return invalid('failure_marker');
  const tests = betweenMarkers(log);
  if (tests === null) return invalid('markers_missing');
  let statuses = await completed(parser(tests, row), signal);
  // Some test runners report outside of the markers, because standard output and standard error may be out of order.
  if (statuses.size === 0 && !statuses.isUnreadable) statuses = await completed(parser(log, row), signal);
  if (statuses.isUnreadable) return invalid('log_unreadable');
  if (statuses.size === 0 && !hasRunTests(log)) return invalid('tests_not_run');
  if (hasFailed(log) && statuses.size > 0 && !reportsFailure(statuses)) return invalid('exit_status_unexplained');
  return { valid: true, statuses };
}

const invalid = (reason: InvalidLog): ReadLog => ({ valid: false, reason });

/** Runs a generator to its end, with a turn of the event loop at each of its pauses. Rejects with the reason of `signal`. */
async function completed<T>(work: Generator<undefined, T, undefined>, signal: AbortSignal): Promise<T> {
  for (let step = work.next(); ; step = work.next()) {
    if (step.done === true) return step.value;
    await nextEventLoopTurn();
    signal.throwIfAborted();
  }
}

/** Replaces `\r\n` and `\r` by `\n`, as Python does when it reads a file as text. */
function* withoutCarriageReturns(text: string): Generator<undefined, string, undefined> {
  if (!text.includes('\r')) return text;
  const parts: string[] = [];
  for (const part of partsOf(text)) {
    parts.push(part.replaceAll(/\r\n?/g, '\n'));
    yield;
  }
  return parts.join('');
}

/** Returns the text after the first start marker, up to the next marker of either kind; `null` when the log lacks a marker. */
function betweenMarkers(log: string): string | null {
  const marker = log.indexOf(START_MARKER);
  if (marker < 0 || !log.includes(END_MARKER)) return null;
  const start = marker + START_MARKER.length;
  const ends = [START_MARKER, END_MARKER].map((text) => log.indexOf(text, start)).filter((at) => at >= 0);
  return log.slice(start, ends.length === 0 ? undefined : Math.min(...ends));
}

/**
 * Signs that tests ran, for logs that report no test because all passed. An expression begins with a literal text and then checks the number
 * before it. The time is therefore linear in the length of the log.
 */
const SIGNS_OF_TESTS = [
  pattern('Executed [1-9]\\d* of \\d'),
  pattern('TOTAL: [1-9]\\d* (?:SUCCESS|FAILED)'),
  pattern(' passing(?<=[1-9]\\d* passing)'),
  pattern('Tests:\\s+[1-9]'),
  pattern('Test Suites:\\s+(?:\\d+ \\w+, ){0,32}[1-9]\\d* total'),
  pattern('(?<![^\\n])# tests [1-9]'),
  pattern(' specs?, \\d+ failure(?<=[1-9]\\d* specs?, \\d+ failure)'),
  pattern("': ok(?![^\\n])"),
];

function hasRunTests(log: string): boolean {
  return SIGNS_OF_TESTS.some((sign) => sign.test(log));
}

const EXIT_STATUS = pattern(`${EXIT_STATUS_MARKER}:\\s*(-?\\d+)`);

/** Whether the log states an exit status of the test command other than 0. */
function hasFailed(log: string): boolean {
  const status = EXIT_STATUS.exec(log)?.[1];
  return status !== undefined && Number(status) !== 0;
}

function reportsFailure(statuses: TestStatuses): boolean {
  for (const [, status] of statuses.entries()) if (status === FAILED || status === ERROR) return true;
  return false;
}
