import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type TomlTable, toToml } from '../../src/harnesses/toml.ts';

const ESCAPES: Readonly<Record<string, string>> = { b: '\b', t: '\t', n: '\n', f: '\f', r: '\r', '"': '"', '\\': '\\' };

/** Reads one basic string as TOML 1.0 defines it, and returns it with what is behind it. */
function basicString(line: string): readonly [string, string] {
  const match = /^"((?:[^\\"\p{Cs}]|\\(?:[btnfr"\\]|u[0-9a-fA-F]{4}))*)"/u.exec(line);
  if (match === null) throw new Error(`no basic string: ${JSON.stringify(line)}`);
  for (const char of match[1] ?? '') {
    if ((char < ' ' && char !== '\t') || char === '\u007f') throw new Error('a control character as it is');
  }
  const value = (match[1] ?? '').replace(/\\(?:u(.{4})|(.))/g, (_, hex: string | undefined, letter: string) => {
    if (hex === undefined) return ESCAPES[letter] ?? '';
    const code = Number.parseInt(hex, 16);
    if (code >= 0xd800 && code <= 0xdfff) throw new Error('not a scalar value');
    return String.fromCharCode(code);
  });
  return [value, line.slice(match[0].length)];
}

/** The subset that is written: string values, and tables below the root. */
function parse(text: string): Record<string, Record<string, string>> {
  const tables: Record<string, Record<string, string>> = {};
  let current: Record<string, string> = {};
  for (const line of text.split('\n').filter((line) => line !== '')) {
    if (line.startsWith('[')) {
      const [name, rest] = basicString(line.slice(1));
      expect(rest).toBe(']');
      current = {};
      Object.defineProperty(tables, name, { value: current, enumerable: true });
      continue;
    }
    const [key, rest] = basicString(line);
    expect(rest.slice(0, 3)).toBe(' = ');
    const [value, end] = basicString(rest.slice(3));
    expect(end).toBe('');
    Object.defineProperty(current, key, { value, enumerable: true });
  }
  return tables;
}

const anyText = fc.oneof(
  fc.string({ unit: 'binary' }),
  fc.string({
    unit: fc.constantFrom('"', '\\', '\n', '\r', '\u007f', '\0', '\u0085', '\u2028', '[', ']', '#', '=', 'é'),
  }),
);
/** The text with halves of characters replaced. */
const whole = (text: string): string => Buffer.from(text).toString();

describe('a TOML document', () => {
  test('gives back every key and every string, whatever is in them', () => {
    fc.assert(
      fc.property(
        fc.uniqueArray(fc.tuple(anyText, anyText, anyText), { selector: ([name]) => whole(name) }),
        (rows) => {
          const table: TomlTable = Object.fromEntries(rows.map(([name, key, value]) => [name, { [key]: value }]));
          const read = parse(toToml(table));
          expect(new Map(Object.entries(read).map(([name, own]) => [name, Object.entries(own)]))).toEqual(
            new Map(rows.map(([name, key, value]) => [whole(name), [[whole(key), whole(value)]]])),
          );
        },
      ),
    );
  });

  test('has half a character replaced', () => {
    expect(toToml({ a: 'x\ud800y' })).toBe('"a" = "x\ufffdy"\n');
  });

  test('writes plain values before tables, and leaves out what is not given', () => {
    const table = { t: { n: { deep: true } }, list: ['a', 'b"c'], none: undefined, number: 7, flag: false };
    expect(toToml(table)).toBe(
      '"list" = ["a", "b\\"c"]\n"number" = 7\n"flag" = false\n["t"]\n["t"."n"]\n"deep" = true\n',
    );
  });
});
