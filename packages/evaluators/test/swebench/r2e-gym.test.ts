import { describe, expect, it } from 'vitest';
import { comparable, gradeR2e } from '../../src/swebench/r2e-gym.ts';

const signal = new AbortController().signal;

async function resolved(output: string, expected: Record<string, string>): Promise<boolean> {
  return (await gradeR2e(output, comparable(new Map(Object.entries(expected))), signal)).resolved;
}

const SUMMARY = '=== short test summary info ===';

describe('gradeR2e', () => {
  it('resolves a row when exactly the expected tests have the expected statuses', async () => {
    const output = `x\n${SUMMARY}\nPASSED r2e_tests/test_1.py::A::test_a\n\u001b[31mFAILED\u001b[0m t.py::test_b - why\nERROR t.py::c - x\n`;
    expect(await resolved(output, { 'A.test_a': 'PASSED', test_b: 'FAILED', c: 'ERROR' })).toBe(true);
    expect(await gradeR2e(output, new Map([['A.test_a', 'PASSED']]), signal)).toEqual({
      resolved: false,
      matching: 1,
      reported: 3,
    });
  });

  it.each([
    ['a missing test', 'PASSED t.py::a'],
    ['another status', 'PASSED t.py::a\nFAILED t.py::b'],
    ['an additional test', 'PASSED t.py::a\nPASSED t.py::b\nPASSED t.py::c'],
    ['a skipped test', 'PASSED t.py::a\nSKIPPED t.py::b'],
  ])('does not resolve a row with %s', async (_, lines) => {
    expect(await resolved(`${SUMMARY}\n${lines}\n`, { a: 'PASSED', b: 'PASSED' })).toBe(false);
  });

  it('reads only the first summary', async () => {
    expect(await resolved('PASSED t.py::a', { a: 'PASSED' })).toBe(false);
    expect(await resolved(`${SUMMARY}\nPASSED t.py::a\n${SUMMARY}\nFAILED t.py::a`, { a: 'PASSED' })).toBe(true);
  });

  it('compares names without colours and without what follows a separator', async () => {
    const output = `${SUMMARY}\nPASSED t.py::a[x - y]\nFAILED t.py::a[x - z]\n`;
    expect(await resolved(output, { '\u001b[1ma[x - q]': 'PASSED' })).toBe(true);
  });

  it('ignores a line without a test id when it counts for an expected one', async () => {
    expect(await resolved(`${SUMMARY}\nPASSED t.py::a\nERROR t.py\n`, { a: 'PASSED', '': 'PASSED' })).toBe(true);
  });
});
