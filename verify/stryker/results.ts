import { columnsOf } from '../runner/report.ts';
import { type Mutant, ROOMS, roomOf } from './mutants.ts';
import type { MutantStatus } from './packages.ts';

export type Result = {
  readonly mutant: Mutant;
  /** `equivalent` for mutants of the list in equivalent.ts, which are not tested. */
  readonly status: MutantStatus | 'equivalent';
};

/** The share of mutants that tests must detect, in percent. */
export const MINIMUM_SCORE = 90;

/**
 * The share of mutants that tests must detect with `--quick`, in percent. It is lower because a sample of 40 can be worse than the whole by
 * chance: at a true share of 92 percent, three standard deviations are 13 percent.
 */
export const QUICK_MINIMUM_SCORE = 78;

/** Maximum number of characters of a mutant's text that are printed. */
const MAX_TEXT = 160;

/**
 * Returns whether a test detected the mutant. A mutant that makes the tests run without end, or that causes an error outside of any test,
 * fails the test run, so it is detected.
 */
export function isDetected(status: Result['status']): boolean {
  return status === 'Killed' || status === 'Timeout' || status === 'RuntimeError';
}

const isSurvivor = ({ status }: Result): boolean => status !== 'equivalent' && !isDetected(status);

/** Returns a text on one line, cut in its middle when it is long. */
function short(text: string): string {
  const flat = text.replaceAll(/\s+/g, ' ');
  return flat.length <= MAX_TEXT ? flat : `${flat.slice(0, MAX_TEXT / 2)} … ${flat.slice(-MAX_TEXT / 2)}`;
}

/** Returns the place and the text of a mutant that no test detected. */
export function survivorText(
  { file, start, original, replacement, mutator }: Mutant,
  status: Result['status'],
): string {
  const note = status === 'NoCoverage' ? ', which no test runs' : '';
  return `${file}:${start.line + 1}:${start.column + 1}  ${short(original)}  ->  ${short(replacement)}  (${mutator}${note})`;
}

export type Counts = {
  readonly sampled: number;
  /** Number of mutants that a test detected. Mutants that ran into a time limit count as detected. */
  readonly killed: number;
  readonly timedOut: number;
  readonly survived: number;
  readonly equivalent: number;
  /**
   * Share of the mutants that tests detected, in percent, rounded down to one decimal. Equivalent mutants are not counted. It is 100 when
   * no mutants are counted.
   */
  readonly score: number;
};

export function countsOf(results: readonly Result[]): Counts {
  const sampled = results.length;
  const killed = results.filter(({ status }) => isDetected(status)).length;
  const timedOut = results.filter(({ status }) => status === 'Timeout').length;
  const equivalent = results.filter(({ status }) => status === 'equivalent').length;
  const judged = sampled - equivalent;
  const score = judged === 0 ? 100 : Math.floor((killed / judged) * 1000) / 10;
  return { sampled, killed, timedOut, survived: judged - killed, equivalent, score };
}

/** Prints the counts of each room and of all rooms. */
export function printTable(results: readonly Result[]): void {
  const rows = [
    ...ROOMS.map((room) => rowOf(room, countsOf(results.filter(({ mutant }) => roomOf(mutant) === room)))),
    rowOf('all', countsOf(results)),
  ];
  const header = ['room', 'sampled', 'killed', 'of which timed out', 'survived', 'equivalent', 'score'];
  console.log(columnsOf([header, ...rows], 1));
}

function rowOf(name: string, { sampled, killed, timedOut, survived, equivalent, score }: Counts): readonly string[] {
  const share = sampled === equivalent ? '–' : `${score} %`;
  return [name, ...[sampled, killed, timedOut, survived, equivalent].map(String), share];
}

/** Returns the mutants that no test detected, in the order of the sources. */
export function survivorsOf(results: readonly Result[]): readonly Result[] {
  const order = ({ mutant }: Result): string =>
    `${mutant.file}:${String(mutant.start.line).padStart(5, '0')}:${String(mutant.start.column).padStart(4, '0')}`;
  return results.filter(isSurvivor).sort((a, b) => (order(a) < order(b) ? -1 : 1));
}
