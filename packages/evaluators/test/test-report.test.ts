import { KIB } from '@floe-rl/core';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { readReport } from '../src/test-report.ts';

const notAborted = new AbortController().signal;

async function read(output: string, expected: string[]): Promise<Record<string, string>> {
  const report = await readReport([output], new Set(expected), notAborted);
  return Object.fromEntries(report.expected);
}

async function unexpectedCount(output: string, expected: string[] = []): Promise<number> {
  return (await readReport([output], new Set(expected), notAborted)).unexpectedCount;
}

describe('readReport', () => {
  it('reads the lines that begin with a status', async () => {
    const output =
      'noise\nPASSED a::b\nFAILED c::d - assert 1 == 2\r\nERROR e\nSKIPPED f  \n PASSED indented\nPASSEDx\n';
    const expected = { 'a::b': 'PASSED', 'c::d': 'FAILED', e: 'ERROR', f: 'SKIPPED' };
    expect(await read(output, [...Object.keys(expected), 'indented', 'x'])).toEqual(expected);
    expect(await unexpectedCount(output)).toBe(4);
  });

  it('reads all outputs of a command, and a last line without a line break', async () => {
    const report = await readReport(['PASSED a\nPASSED b', 'FAILED b\nPASSED c'], new Set(['a', 'b', 'c']), notAborted);
    expect(Object.fromEntries(report.expected)).toEqual({ a: 'PASSED', b: 'CONFLICTING', c: 'PASSED' });
  });

  it('ignores colour sequences', async () => {
    const output = '\u001b[32mPASSED\u001b[0m a::\u001b[1mb\u001b[0m';
    expect(await read(output, ['a::b'])).toEqual({ 'a::b': 'PASSED' });
  });

  it('lets the expected test ids decide where a test id ends', async () => {
    expect(await read('FAILED t[a - b] - boom - really', ['t[a - b]'])).toEqual({ 't[a - b]': 'FAILED' });
    expect(await read('PASSED t[a - b]', ['t[a - b]'])).toEqual({ 't[a - b]': 'PASSED' });
    expect(await read('FAILED t[a - b] - boom', ['t[a'])).toEqual({ 't[a': 'FAILED' });
    expect(await read('FAILED a - - b', ['a -'])).toEqual({ 'a -': 'FAILED' });
  });

  it('marks a test id with different statuses as conflicting, in either order', async () => {
    expect(await read('PASSED a\nFAILED a - x', ['a'])).toEqual({ a: 'CONFLICTING' });
    expect(await read('FAILED a\nPASSED a\nPASSED a', ['a'])).toEqual({ a: 'CONFLICTING' });
    expect(await read('PASSED a\nPASSED a', ['a'])).toEqual({ a: 'PASSED' });
  });

  it('keeps test ids that are named like properties of objects', async () => {
    const report = await readReport(['PASSED __proto__\nPASSED constructor'], new Set(['__proto__']), notAborted);
    expect([...report.expected]).toEqual([['__proto__', 'PASSED']]);
    expect(report.unexpectedCount).toBe(1);
  });

  it('finds the same test ids as a search through every separator of every line', async () => {
    const piece = fc.constantFrom('a', 'b', ' - ', ' -', '- ', ' ', 'PASSED ', 'FAILED ', '\n', '\r\n', '\r');
    const text = fc.array(piece, { maxLength: 40 }).map((pieces) => pieces.join(''));
    const testId = fc
      .array(fc.constantFrom('a', 'b', ' - ', ' -'), { minLength: 1, maxLength: 5 })
      .map((parts) => parts.join('').trim());
    await fc.assert(
      fc.asyncProperty(
        text,
        fc.array(
          testId.filter((id) => id !== ''),
          { maxLength: 4 },
        ),
        async (output, ids) => {
          expect(await read(output, ids)).toEqual(naiveReport(output, new Set(ids)));
        },
      ),
      { numRuns: 500 },
    );
  });

  it('reads lines that cross the boundary between two parts of the output', async () => {
    const line = 'PASSED a-test-with-a-long-name[parameter]\n';
    const count = Math.ceil((200 * KIB) / line.length);
    const output = Array.from({ length: count }, (_, i) => line.replace(']', `-${i}]`)).join('');
    expect(await unexpectedCount(output)).toBe(count);
  });

  it('ignores the rest of a line that is longer than 64 Ki characters', async () => {
    const reason = ' - x'.repeat(100 * KIB);
    expect(await read(`FAILED a${reason}\nPASSED b`, ['a', 'b'])).toEqual({ a: 'FAILED', b: 'PASSED' });
  });

  it('counts at most 100,000 unexpected test ids', async () => {
    const output = Array.from({ length: 100_010 }, (_, i) => `PASSED ${i}`).join('\n');
    expect(await unexpectedCount(output)).toBe(100_000);
    expect(await read(`${output}\nFAILED last`, ['last'])).toEqual({ last: 'FAILED' });
  });

  it('lets the event loop run after every 64 Ki characters', async () => {
    let turns = 0;
    let reading = true;
    const count = (): void => {
      turns += 1;
      if (reading) setImmediate(count);
    };
    setImmediate(count);
    await readReport(['PASSED x - y\n'.repeat(100 * KIB)], new Set(['a']), notAborted);
    reading = false;
    expect(turns).toBeGreaterThanOrEqual((100 * KIB * 13) / (64 * KIB));
  });

  it('stops when its signal aborts', async () => {
    const reason = new Error('out of time');
    await expect(readReport(['PASSED a\n'], new Set(['a']), AbortSignal.abort(reason))).rejects.toBe(reason);
  });
});

/** Reads a report by trying every separator of a line as the end of its test id, which takes quadratic time. */
function naiveReport(output: string, expected: ReadonlySet<string>): Record<string, string> {
  const statuses = new Map<string, string>();
  for (const line of output.split(/\r\n|\r|\n/)) {
    const match = /^(PASSED|FAILED)[ \t]+(\S.*)$/.exec(line);
    if (match === null) continue;
    const text = (match[2] ?? '').trimEnd();
    const cuts = Array.from({ length: text.length }, (_, at) => at).filter((at) => text.startsWith(' - ', at));
    const heads = [text, ...cuts.map((cut) => text.slice(0, cut))];
    const testId = heads.find((head) => expected.has(head));
    if (testId === undefined) continue;
    const earlier = statuses.get(testId);
    statuses.set(testId, earlier === undefined || earlier === match[1] ? (match[1] ?? '') : 'CONFLICTING');
  }
  return Object.fromEntries(statuses);
}
