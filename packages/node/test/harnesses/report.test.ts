import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import { lastJsonLine } from '../../src/harnesses/report.ts';

const schema = z.object({ kind: z.literal('end'), text: z.string() });

/** Returns a line of a harness's output with `chars` characters of text. */
function line(text: string, chars = 0): string {
  return `${JSON.stringify({ kind: 'end', text: text + 'x'.repeat(chars) })}\n`;
}

describe('lastJsonLine', () => {
  it('returns the last line that has the marker and matches the schema', () => {
    const stdout = `${line('first')}${line('last')}{"kind":"end"}\n"kind": but not JSON\n{"kind":"other","text":"x"}\nnoise`;
    expect(lastJsonLine(stdout, '"kind"', schema)).toEqual({ kind: 'end', text: 'last' });
    expect(lastJsonLine(stdout, '"missing"', schema)).toBeNull();
  });

  it('skips a line that is longer than 4 Mi characters', () => {
    const stdout = line('genuine') + line('forged', 5 * 2 ** 20);
    expect(lastJsonLine(stdout, '"kind"', schema)?.text).toBe('genuine');
  });

  it('parses at most 4 Mi characters of lines that do not match', () => {
    const forged = `{"kind":"${'x'.repeat(2 ** 20)}"}\n`;
    expect(lastJsonLine(line('genuine') + forged.repeat(3), '"kind"', schema)?.text).toBe('genuine');
    expect(lastJsonLine(line('genuine', 2 ** 20) + forged.repeat(3), '"kind"', schema)).toBeNull();
  });

  it('parses at most 1,000 lines', () => {
    const forged = '{"kind":"other"}\n';
    expect(lastJsonLine(line('genuine') + forged.repeat(999), '"kind"', schema)?.text).toBe('genuine');
    expect(lastJsonLine(line('genuine') + forged.repeat(1_000), '"kind"', schema)).toBeNull();
  });
});
