import { describe, expect, it } from 'vitest';
import { parseReport } from '../../src/evaluators/test-report.ts';

function parse(output: string, expected: string[] = []): Record<string, string> {
  return Object.fromEntries(parseReport(output, new Set(expected)));
}

describe('parseReport', () => {
  it('reads the lines that begin with a status', () => {
    const output =
      'noise\nPASSED a::b\nFAILED c::d - assert 1 == 2\r\nERROR e\nSKIPPED f  \n PASSED indented\nPASSEDx\n';
    expect(parse(output)).toEqual({ 'a::b': 'PASSED', 'c::d': 'FAILED', e: 'ERROR', f: 'SKIPPED' });
  });

  it('ignores colour sequences', () => {
    expect(parse('\u001b[32mPASSED\u001b[0m a::\u001b[1mb\u001b[0m')).toEqual({ 'a::b': 'PASSED' });
  });

  it('lets the expected test ids decide where a test id ends', () => {
    expect(parse('FAILED t[a - b] - boom - really', ['t[a - b]'])).toEqual({ 't[a - b]': 'FAILED' });
    expect(parse('PASSED t[a - b]', ['t[a - b]'])).toEqual({ 't[a - b]': 'PASSED' });
    expect(parse('FAILED t[a - b] - boom')).toEqual({ 't[a': 'FAILED' });
  });

  it('marks a test id with different statuses as conflicting, in either order', () => {
    expect(parse('PASSED a\nFAILED a - x')).toEqual({ a: 'CONFLICTING' });
    expect(parse('FAILED a\nPASSED a\nPASSED a')).toEqual({ a: 'CONFLICTING' });
    expect(parse('PASSED a\nPASSED a')).toEqual({ a: 'PASSED' });
  });

  it('keeps test ids that are named like properties of objects', () => {
    expect([...parseReport('PASSED __proto__\nPASSED constructor', new Set())]).toEqual([
      ['__proto__', 'PASSED'],
      ['constructor', 'PASSED'],
    ]);
  });
});
