import { describe, expect, it } from 'vitest';
import { type EvalType, grade } from '../../src/swebench/grading.ts';
import { TestStatuses } from '../../src/swebench/parsers/log-parser.ts';

function graded(
  reported: Record<string, string>,
  failToPass: string[],
  passToPass: string[] = [],
  evalType: EvalType = 'pass_and_fail',
) {
  const statuses = new TestStatuses();
  for (const [name, status] of Object.entries(reported)) statuses.set(name, status);
  return grade(statuses, { failToPass, passToPass }, evalType);
}

describe('grade', () => {
  it('resolves a row when every expected test passed or failed as expected', () => {
    expect(graded({ a: 'PASSED', b: 'XFAIL' }, ['a'], ['b'])).toEqual({
      resolved: true,
      failToPass: { held: ['a'], failed: [], undecided: [] },
      passToPass: { held: ['b'], failed: [], undecided: [] },
    });
  });

  it.each(['FAILED', 'ERROR'])('does not resolve a row with a test that is %s', (status) => {
    expect(graded({ a: status, b: 'PASSED' }, ['a'], ['b']).resolved).toBe(false);
    expect(graded({ a: 'PASSED', b: status }, ['a'], ['b']).resolved).toBe(false);
  });

  it('does not resolve a row with a missing test', () => {
    expect(graded({ a: 'PASSED' }, ['a'], ['b']).passToPass.failed).toEqual(['b']);
  });

  it('accepts a skipped test only where it passed before', () => {
    const { failToPass, passToPass } = graded({ a: 'SKIPPED', b: 'SKIPPED' }, ['a'], ['b']);
    expect([failToPass.failed, passToPass.held]).toEqual([['a'], ['b']]);
  });

  it('leaves tests with a status that is no status of a test undecided', () => {
    expect(graded({ a: 'PASSED', b: 'ERROR:' }, ['a'], ['b'])).toMatchObject({
      resolved: true,
      passToPass: { held: [], failed: [], undecided: ['b'] },
    });
  });

  it('finds an expected id that was cut off in a parameter by its beginning', () => {
    expect(graded({ 't[a b]': 'PASSED', 't[a c]': 'XFAIL', 't[b]': 'FAILED' }, ['t[a']).resolved).toBe(true);
    expect(graded({ 't[a b]': 'PASSED', 't[a c]': 'FAILED' }, ['t[a']).resolved).toBe(false);
    expect(graded({ 't[a b]': 'FAILED' }, ['t[a']).resolved).toBe(false);
  });

  it('takes the status of the first test that begins with the cut id', () => {
    expect(graded({ 't[a b]': 'SKIPPED', 't[a c]': 'FAILED' }, [], ['t[a']).resolved).toBe(true);
    expect(graded({ 't[a b]': 'FAILED', 't[a c]': 'SKIPPED' }, [], ['t[a']).resolved).toBe(false);
  });

  it('compares complete ids as a whole', () => {
    expect(graded({ 't[a]x': 'PASSED' }, ['t[a]']).resolved).toBe(false);
    expect(graded({ 'a] b': 'PASSED' }, ['a]']).resolved).toBe(false);
  });

  it('prefers the test with exactly the cut id', () => {
    expect(graded({ 't[a': 'FAILED', 't[a]': 'PASSED' }, ['t[a']).resolved).toBe(false);
  });

  it('judges logs that contain only failures by what failed', () => {
    const { resolved, failToPass } = graded({ b: 'FAILED', c: 'ERROR' }, ['a', 'b', 'c'], [], 'fail_only');
    expect([resolved, failToPass.held, failToPass.failed]).toEqual([false, ['a', 'c'], ['b']]);
    expect(graded({}, ['a'], ['b'], 'fail_only').resolved).toBe(true);
  });
});
