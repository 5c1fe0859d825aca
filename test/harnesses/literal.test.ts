import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { LITERAL_ENV, literal, twiceLiteral } from '../../src/harnesses/config-text.ts';
import { findHarness } from '../../src/harnesses/registry.ts';
import { fileOf, launchOf } from './launch-context.ts';

const HOSTILE = { HOME: '/home/agent', A: '$HOME', FLOE: 'x' };

/** As the programs replace variables in a text. */
function replaced(text: string): string {
  const variables: Readonly<Record<string, string>> = { ...HOSTILE, ...LITERAL_ENV };
  return text.replace(/\$(?:(\w+)|\{([^}]+)\})/g, (match, plain: string | undefined, braced: string | undefined) => {
    const [name = '', otherwise] = (plain ?? braced ?? '').split(':-');
    return variables[name] ?? otherwise ?? match;
  });
}

/** As Gemini CLI does it a second time, where a backslash quotes. */
function replacedAgain(text: string): string {
  return text
    .replace(/(?<!\\)\$\{?(\w+)\}?/g, (_, name: string) => ({ ...HOSTILE, ...LITERAL_ENV })[name] ?? '')
    .replaceAll('\\$', '$');
}

const words = fc.array(
  fc.constantFrom('$', '{', '}', 'HOME', 'A', ':-', 'é', '"', '\n', 'FLOE_DOLLAR', '_', ' ', '$HOME', `\${A:-x}`),
);
const texts = words.map((parts) => parts.join(''));

describe('a text for a program that replaces variables', () => {
  test('arrives as it is', () => {
    fc.assert(
      fc.property(texts, (text) => {
        expect(replaced(literal(text))).toBe(text);
        expect(replacedAgain(replaced(twiceLiteral(text)))).toBe(text);
      }),
    );
  });

  test('is found wherever it stands in a value, and nothing else changes', () => {
    const value = { a: ['$', 1, null, { b: '$x' }], c: true, d: undefined };
    const dollar = `\${FLOE_DOLLAR}`;
    expect(literal(value)).toEqual({ a: [dollar, 1, null, { b: `${dollar}x` }], c: true, d: undefined });
  });
});

describe.each(['claude_code', 'gemini_cli', 'qwen_code'])('a tool server of %s', (name) => {
  const file = { claude_code: 'mcp.json', gemini_cli: '.gemini/settings.json', qwen_code: 'settings.json' }[name] ?? '';
  const text = `$HOME \${HOME:-x} $$A`;
  const servers = [
    { name: 'one', transport: 'stdio' as const, command: 'c$A', args: [text], env: { X: text } },
    { name: 'two', transport: 'http' as const, url: 'http://h/$A', headers: { x: text } },
  ];

  test('gets what the task says', () => {
    const launch = launchOf(findHarness(name), { mcp_servers: servers });
    expect(launch.env).toMatchObject(LITERAL_ENV);
    const each = (_key: string, value: unknown): unknown => (typeof value === 'string' ? replaced(value) : value);
    const { one, two } = JSON.parse(fileOf(launch, file), each).mcpServers;
    expect([one.command, one.args, two.httpUrl ?? two.url]).toEqual(['c$A', [text], 'http://h/$A']);
    const again = name === 'gemini_cli' ? replacedAgain : (value: string) => value;
    expect([again(one.env.X), again(two.headers.x)]).toEqual([text, text]);
  });
});
