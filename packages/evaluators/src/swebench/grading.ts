import { ERROR, FAILED, PASSED, SKIPPED, type TestStatuses, XFAIL } from './parsers/log-parser.ts';

/** The tests of a row. A correct patch makes the tests in `failToPass` pass; the tests in `passToPass` must continue to pass. */
export type RowTests = { readonly failToPass: readonly string[]; readonly passToPass: readonly string[] };

/**
 * How an expected test is judged. `pass_and_fail`: it must be reported as passed. `fail_only`: it must not be reported as failed, because the
 * log of the repository contains failures only.
 */
export type EvalType = 'pass_and_fail' | 'fail_only';

/**
 * The expected tests of a row. `held`: the test has the expected result. `failed`: the test does not have it. `undecided`: the status of the
 * test is neither a success nor a failure, and does not change the grade.
 */
export type GradedTests = { readonly held: string[]; readonly failed: string[]; readonly undecided: string[] };

export type Grade = {
  /** Whether no expected test failed. */
  readonly resolved: boolean;
  readonly failToPass: GradedTests;
  readonly passToPass: GradedTests;
};

/** Judges the expected tests of a row, by the rules of `swebench` 5.0.2. */
export function grade(statuses: TestStatuses, tests: RowTests, evalType: EvalType): Grade {
  const truncated = truncatedIds(statuses, [...tests.failToPass, ...tests.passToPass]);
  const statusOf = (id: string): string | undefined => statuses.get(id) ?? truncated.get(id);
  const failOnly = (id: string): Judgement => (statuses.get(id) === FAILED ? 'failed' : 'held');
  const isFailOnly = evalType === 'fail_only';
  const failToPass = sorted(tests.failToPass, isFailOnly ? failOnly : (id) => judge(statusOf(id), false));
  const passToPass = sorted(tests.passToPass, isFailOnly ? failOnly : (id) => judge(statusOf(id), true));
  return { resolved: failToPass.failed.length + passToPass.failed.length === 0, failToPass, passToPass };
}

type Judgement = keyof GradedTests;

/** A skipped test has the expected result only if it passed before the change. */
function judge(status: string | undefined, maySkip: boolean): Judgement {
  if (status === PASSED || status === XFAIL || (maySkip && status === SKIPPED)) return 'held';
  const failed = status === undefined || status === FAILED || status === ERROR || status === SKIPPED;
  return failed ? 'failed' : 'undecided';
}

function sorted(ids: readonly string[], judgeId: (id: string) => Judgement): GradedTests {
  const graded: GradedTests = { held: [], failed: [], undecided: [] };
  for (const id of ids) graded[judgeId(id)].push(id);
  return graded;
}

/**
 * Returns statuses for expected ids that the published rows cut off inside a parameter, such as `test_a[x`. The status of an id is the status
 * of the first reported test whose name begins with the id, provided that all such tests passed or none did. Ids without an open bracket are
 * left out.
 */
function truncatedIds(statuses: TestStatuses, ids: readonly string[]): ReadonlyMap<string, string> {
  const groups = new Map<string, Candidate[]>();
  for (const id of new Set(ids)) {
    if (statuses.get(id) !== undefined || count(id, '[') <= count(id, ']')) continue;
    const head = headOf(id);
    groups.set(head, [...(groups.get(head) ?? []), { id, first: null, passed: 0, others: 0 }]);
  }
  if (groups.size > 0) {
    for (const [name, status] of statuses.entries()) {
      for (const candidate of groups.get(headOf(name)) ?? []) compare(candidate, name, status);
    }
  }
  const found = [...groups.values()].flat().filter(({ passed, others }) => passed === 0 || others === 0);
  return new Map(found.flatMap(({ id, first }) => (first === null ? [] : [[id, first] as const])));
}

/** A truncated id, the status of the first test that begins with it, the number of such tests that passed, and the number of the others. */
type Candidate = { readonly id: string; first: string | null; passed: number; others: number };

function compare(candidate: Candidate, name: string, status: string): void {
  if (!name.startsWith(candidate.id)) return;
  candidate.first ??= status;
  if (status === PASSED || status === XFAIL) candidate.passed += 1;
  else candidate.others += 1;
}

/** Returns an id up to its first bracket. Two ids can begin with the same text only if this part is equal. */
function headOf(id: string): string {
  return id.slice(0, id.indexOf('[') + 1);
}

function count(text: string, character: string): number {
  return text.split(character).length - 1;
}
