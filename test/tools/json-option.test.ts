import { describe, expect, it } from 'vitest';
import { takeJsonOption } from '../../tools/json-option.ts';

describe('takeJsonOption', () => {
  it.each([
    [['--jobs', '2'], ['--jobs', '2'], { line: false, file: null }],
    [['--json', '--jobs', '2'], ['--jobs', '2'], { line: true, file: null }],
    [['--jobs', '2', '--json'], ['--jobs', '2'], { line: true, file: null }],
    [['--json', 'out.json', '--jobs', '2'], ['--jobs', '2'], { line: false, file: 'out.json' }],
  ])('splits %j', (args, rest, json) => {
    expect(takeJsonOption(args)).toEqual({ args: rest, json });
  });
});
