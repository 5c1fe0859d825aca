import { nextEventLoopTurn } from '@floe-rl/core';
import { linesOf } from '../lines.ts';
import { ERROR, FAILED, PASSED } from './parsers/log-parser.ts';
import { before } from './parsers/python-text.ts';

/**
 * Shell script that runs the tests of an R2E-Gym image. The image has the tests in `/r2e_tests` and their script in the repository. When the
 * image was prepared like R2E-Gym's own sandboxes, both are in `/root`.
 */
export const R2E_TEST_COMMAND = `
for tests in /root/r2e_tests /r2e_tests; do
  if [ -d "$tests" ]; then rm -rf r2e_tests; ln -s "$tests" r2e_tests; break; fi
done
script=run_tests.sh
if [ -f /root/run_tests.sh ]; then script=/root/run_tests.sh; fi
bash "$script"
`;

const SUMMARY = 'short test summary info';
// biome-ignore lint/suspicious/noControlCharactersInRegex: colour sequences begin with the escape character
const COLOUR = /\x1b\[[0-9;]*m/g;
const STATUSES = [PASSED, FAILED, ERROR];
/** Maximum number of reported tests that are kept. A log with more tests resolves no row. */
const MAX_TESTS = 200_000;

export type R2eGrade = { readonly resolved: boolean; readonly matching: number; readonly reported: number };

/**
 * Returns the statuses of tests in the form in which R2E-Gym compares them. Names have no colours, and end before ` - `. When several names
 * become equal, the status of the last name in alphabetical order counts.
 */
export function comparable(statuses: ReadonlyMap<string, string>): Map<string, string> {
  const plain = new Map([...statuses].map(([name, status]) => [name.replaceAll(COLOUR, ''), status]));
  return new Map([...plain.keys()].sort().map((name) => [before(name, ' - '), plain.get(name) ?? '']));
}

/**
 * Compares the summary of pytest in an output with the expected statuses, by the rules of R2E-Gym (`_calculate_reward_r2e` at 0277f10). Every
 * reported test must be expected and have its expected status, and no expected test may be missing. `expected` is comparable. Rejects with the
 * reason of `signal`.
 */
export async function gradeR2e(
  output: string,
  expected: ReadonlyMap<string, string>,
  signal: AbortSignal,
): Promise<R2eGrade> {
  const summary = await readSummary(output.replaceAll(COLOUR, '').replaceAll('\r', ''), signal);
  const reported = comparable(summary);
  const matching = [...expected].filter(([name, status]) => reported.get(name) === status).length;
  const areExpected = [...reported].every(([name, status]) => name === '' || expected.get(name) === status);
  const isComplete = reported.size === expected.size && summary.size <= MAX_TESTS;
  return { resolved: isComplete && areExpected, matching, reported: reported.size };
}

/** Reads the lines after the first heading of the summary, up to the next heading. */
async function readSummary(output: string, signal: AbortSignal): Promise<Map<string, string>> {
  const reported = new Map<string, string>();
  const heading = output.indexOf(SUMMARY);
  if (heading < 0) return reported;
  const start = heading + SUMMARY.length;
  const end = output.indexOf(SUMMARY, start);
  for (const lines of linesOf(output.slice(start, end < 0 ? undefined : end))) {
    for (const line of lines) {
      const status = STATUSES.find((known) => line.includes(known));
      if (status !== undefined && reported.size <= MAX_TESTS) reported.set(nameIn(line, status), status);
    }
    await nextEventLoopTurn();
    signal.throwIfAborted();
  }
  return reported;
}

/** Returns the parts of a test id after the file, joined by dots, and without the reason of a failure. */
function nameIn(line: string, status: string): string {
  const name = line.split('::').slice(1).join('.');
  return status === PASSED ? name : before(name, ' - ');
}
