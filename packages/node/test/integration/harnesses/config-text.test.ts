import { execFileSync } from 'node:child_process';
import fc from 'fast-check';
import { parse } from 'smol-toml';
import { describe, expect, it } from 'vitest';
import { harnessMissing, itIf } from '../../../../../test/skip.ts';
import { harnessDir } from '../../../../floe/src/commands/home.ts';
import {
  DOLLAR_ENV,
  escapeDollars,
  escapeDollarsTwice,
  type TomlTable,
  toToml,
  toYaml,
} from '../../../src/harnesses/config-text.ts';
import { pythonPath } from '../../../src/harnesses/install/catalog.ts';
import { harnessStatus } from '../../../src/harnesses/install/install.ts';
import { findHarness } from '../../../src/harnesses/registry.ts';
import { fileOf, launchOf } from '../../harnesses/launch-context.ts';

describe('toToml', () => {
  const anyText = fc.oneof(
    fc.string({ unit: 'binary' }),
    fc.string({
      unit: fc.constantFrom('"', '\\', '\n', '\r', '\u007f', '\0', '\u0085', '\u2028', '[', ']', '#', '=', '.', 'é'),
    }),
  );
  /** Returns the text after encoding to and decoding from UTF-8, which replaces lone surrogates. */
  const wellFormed = (text: string): string => Buffer.from(text).toString();

  it('writes every key and every string so that they are read back unchanged', () => {
    fc.assert(
      fc.property(
        fc.uniqueArray(fc.tuple(anyText, anyText, anyText), { selector: ([name]) => wellFormed(name) }),
        (rows) => {
          const table: TomlTable = Object.fromEntries(
            rows.map(([name, key, value]) => [name, { [key]: [value, value] }]),
          );
          const text = toToml(table);
          // biome-ignore lint/suspicious/noControlCharactersInRegex: TOML allows no other control characters than these two.
          expect(text).not.toMatch(/[\0-\x08\x0b-\x1f\x7f]/);
          expect(wellFormed(text)).toBe(text);
          const read = Object.entries(parse(text)).map(([name, inner]) => [name, Object.entries(inner)]);
          expect(new Map(read as [string, unknown][])).toEqual(
            new Map(
              rows.map(([name, key, value]) => [
                wellFormed(name),
                [[wellFormed(key), [wellFormed(value), wellFormed(value)]]],
              ]),
            ),
          );
        },
      ),
    );
  });

  it('replaces a lone surrogate in strings and keys', () => {
    expect(toToml({ 'k\udfff': 'x\ud800y' })).toBe('"k\ufffd" = "x\ufffdy"\n');
  });

  it('writes plain values before tables and leaves out undefined values', () => {
    const table = { t: { n: { deep: true } }, list: ['a', 'b"c'], none: undefined, number: 7, flag: false };
    expect(toToml(table)).toBe('list = [ "a", "b\\"c" ]\nnumber = 7\nflag = false\n\n[t.n]\ndeep = true\n');
  });
});

const { path: miniPath } = await harnessStatus('mini_swe_agent', harnessDir());

describe('toYaml', () => {
  it('writes JSON in printable ASCII characters', () => {
    expect(toYaml({ task: 'a: "b"\n\t#c', n: [1, null, true] })).toBe(
      '{"task":"a: \\"b\\"\\n\\t#c","n":[1,null,true]}',
    );
    expect(toYaml('é\u0085\u2028\u007f😀')).toBe('"\\u00e9\\u0085\\u2028\\u007f\\U0001f600"');
  });

  it('replaces a lone surrogate', () => {
    expect(toYaml('a\ud83d')).toBe('"a\\ufffd"');
    expect(toYaml('\ude00\\ud83d')).toBe('"\\ufffd\\\\ud83d"');
    expect(toYaml({ 'k\ud83d': 1 })).toBe('{"k\\ufffd":1}');
  });

  itIf(
    harnessMissing('mini_swe_agent', miniPath !== null),
    'writes text that the parser of mini-SWE-agent reads back unchanged',
    () => {
      if (miniPath === null) throw new Error('mini_swe_agent is not installed');
      const odd = fc.constantFrom(...'\0\t\n\r"\\:#{}[]%@&*!|>~\x7f\x85\x9f\xa0\u2028\u2029\ufeff\ufffe\uffff😀');
      const unit = fc.oneof(odd, fc.string({ unit: 'binary', minLength: 1, maxLength: 1 }));
      const values = fc.sample(fc.dictionary(fc.string({ unit, maxLength: 8 }), fc.string({ unit })), 300);
      const script = 'import json, sys, yaml; print(json.dumps([yaml.safe_load(line) for line in sys.stdin]))';
      const input = values.map((value) => toYaml(value)).join('\n');
      const read = execFileSync(pythonPath(miniPath), ['-c', script], { input, maxBuffer: 1 << 26 });
      expect(JSON.parse(read.toString())).toEqual(values);
    },
  );
});

const HOSTILE = { HOME: '/home/agent', A: '$HOME', FLOE: 'x' };

/** Replaces references to variables, such as `$NAME`, in a text as the harnesses do. */
function expand(text: string): string {
  const variables: Readonly<Record<string, string>> = { ...HOSTILE, ...DOLLAR_ENV };
  return text.replace(/\$(?:(\w+)|\{([^}]+)\})/g, (match, plain: string | undefined, braced: string | undefined) => {
    const [name = '', otherwise] = (plain ?? braced ?? '').split(':-');
    return variables[name] ?? otherwise ?? match;
  });
}

/** Replaces references to variables as Gemini CLI does the second time. In that second pass, a backslash escapes a dollar sign. */
function expandAgain(text: string): string {
  return text
    .replace(/(?<!\\)\$\{?(\w+)\}?/g, (_, name: string) => ({ ...HOSTILE, ...DOLLAR_ENV })[name] ?? '')
    .replaceAll('\\$', '$');
}

describe('escapeDollars', () => {
  const words = fc.array(
    fc.constantFrom('$', '{', '}', 'HOME', 'A', ':-', 'é', '"', '\n', 'FLOE_DOLLAR', '_', ' ', '$HOME', `\${A:-x}`),
  );
  const texts = words.map((parts) => parts.join(''));

  it('keeps a text unchanged after variables were replaced once, or twice with escapeDollarsTwice', () => {
    fc.assert(
      fc.property(texts, (text) => {
        expect(expand(escapeDollars(text))).toBe(text);
        expect(expandAgain(expand(escapeDollarsTwice(text)))).toBe(text);
      }),
    );
  });

  it('escapes every string in a value and changes nothing else', () => {
    const value = { a: ['$', 1, null, { b: '$x' }], c: true, d: undefined };
    const dollar = `\${FLOE_DOLLAR}`;
    expect(escapeDollars(value)).toEqual({ a: [dollar, 1, null, { b: `${dollar}x` }], c: true, d: undefined });
  });
});

describe.each(['claude_code', 'gemini_cli', 'qwen_code'])('an MCP server of %s', (name) => {
  const file = { claude_code: 'mcp.json', gemini_cli: '.gemini/settings.json', qwen_code: 'settings.json' }[name] ?? '';
  const text = `$HOME \${HOME:-x} $$A`;
  const servers = [
    { name: 'one', transport: 'stdio' as const, command: 'c$A', args: [text], env: { X: text } },
    { name: 'two', transport: 'http' as const, url: 'http://h/$A', headers: { x: text } },
  ];

  it('receives the values of the task unchanged', () => {
    const launch = launchOf(findHarness(name), { mcp_servers: servers });
    expect(launch.env).toMatchObject(DOLLAR_ENV);
    const each = (_key: string, value: unknown): unknown => (typeof value === 'string' ? expand(value) : value);
    const { one, two } = JSON.parse(fileOf(launch, file), each).mcpServers;
    expect([one.command, one.args, two.httpUrl ?? two.url]).toEqual(['c$A', [text], 'http://h/$A']);
    const again = name === 'gemini_cli' ? expandAgain : (value: string) => value;
    expect([again(one.env.X), again(two.headers.x)]).toEqual([text, text]);
  });
});
