import { describe, expect, it } from 'vitest';
import { readLog } from '../../src/swebench/log.ts';
import { type LogParserName, logParser } from '../../src/swebench/parsers/registry.ts';

const START = '>>>>> Start Test Output';
const END = '>>>>> End Test Output';

async function read(log: string, name: LogParserName = 'parse_log_pytest', signal = new AbortController().signal) {
  const result = await readLog(log, logParser(name), { instanceId: 'a__a-1', version: '1' }, signal);
  return result.valid ? Object.fromEntries(result.statuses.entries()) : result.reason;
}

describe('readLog', () => {
  it('reads the tests between the markers and ignores what comes before and after', async () => {
    const log = `PASSED before\n+ : '${START}'\nPASSED a\n+ : '${END}'\nPASSED after\n`;
    expect(await read(log)).toEqual({ a: 'PASSED' });
  });

  it('ends at the first marker after the start, of either kind', async () => {
    expect(await read(`${START}\nPASSED a\n${START}\nPASSED b\n${END}`)).toEqual({ a: 'PASSED' });
    expect(await read(`${END}\n${START}\nPASSED a\n`)).toEqual({ a: 'PASSED' });
  });

  it('reads the whole log when there is nothing between the markers', async () => {
    expect(await read(`PASSED a\n${START}\n${END}\nFAILED b\n`)).toEqual({ a: 'PASSED', b: 'FAILED' });
  });

  it.each([
    ['markers_missing', `PASSED a\n${START}\n`],
    ['markers_missing', `PASSED a\n${END}\n`],
    ['failure_marker', `${START}\nPASSED a\n>>>>> Tests Timed Out\n${END}`],
    ['failure_marker', `>>>>> Patch Apply Failed\n${START}\nPASSED a\n${END}`],
    ['tests_not_run', `${START}\nno tests\n${END}`],
    ['tests_not_run', `${START}\nExecuted 0 of 0\n0 passing\n0 specs, 0 failures\n${END}`],
    ['exit_status_unexplained', `${START}\nPASSED a\n${END}\n>>>>> Test Exit Code: 1\n`],
    ['exit_status_unexplained', `${START}\nSKIPPED a\n${END}\n>>>>> Test Exit Code: -9\n`],
  ])('is invalid because of %s: %j', async (reason, log) => {
    expect(await read(log)).toBe(reason);
  });

  it('is invalid when its parser gives up', async () => {
    expect(await read(`${START}\nERROR:\n${END}`, 'parse_log_django')).toBe('log_unreadable');
  });

  it.each([
    'Executed 3 of 4 SUCCESS',
    'TOTAL: 12 SUCCESS',
    '10 passing (2s)',
    'Tests:  \n 3 passed',
    'Test Suites: 1 failed, 2 skipped, 3 total',
    '# tests 4',
    '658 specs, 0 failures',
    "case': ok",
  ])('accepts %j as a sign that the tests ran', async (line) => {
    expect(await read(`${START}\n${line}\n${END}`)).toEqual({});
  });

  it('believes the first exit status, and none where a test failed', async () => {
    const log = (tests: string, ...statuses: number[]): string =>
      `${START}\n${tests}\n${END}\n${statuses.map((status) => `>>>>> Test Exit Code: ${status}\n`).join('')}`;
    expect(await read(log('PASSED a', 0, 1))).toEqual({ a: 'PASSED' });
    expect(await read(log('PASSED a', 2, 0))).toBe('exit_status_unexplained');
    expect(await read(log('PASSED a\nERROR b', 1))).toEqual({ a: 'PASSED', b: 'ERROR' });
    expect(await read(log('5 passing', 1))).toEqual({});
  });

  it('reads every kind of line break', async () => {
    const log = `${START}\r\nPASSED a\rPASSED b\r\n\r\nPASSED c\r\n${END}`;
    expect(await read(log)).toEqual({ a: 'PASSED', b: 'PASSED', c: 'PASSED' });
    const long = `${START}\n${'PASSED a\r\n'.repeat(20_000)}${END}`;
    expect(await read(long)).toEqual({ a: 'PASSED' });
  });

  it('rejects with the reason of its signal while it reads a long log', async () => {
    const controller = new AbortController();
    const reading = read(`${START}\n${'PASSED a\n'.repeat(50_000)}${END}`, 'parse_log_pytest', controller.signal);
    controller.abort(new Error('cancelled here'));
    await expect(reading).rejects.toThrow('cancelled here');
  });
});
