/** This file writes the texts of configuration files that may contain any strings of a task. */
import { stringify } from 'smol-toml';

/** Matches a lone half of a surrogate pair, which UTF-8 cannot represent. */
const LONE_SURROGATE = /\p{Surrogate}/gu;

/** Replaces every lone surrogate in the strings and keys of a JSON value by U+FFFD. */
function wellFormed(value: unknown): unknown {
  if (typeof value === 'string') return value.replaceAll(LONE_SURROGATE, '\ufffd');
  if (Array.isArray(value)) return value.map(wellFormed);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, part]) => [key.replaceAll(LONE_SURROGATE, '\ufffd'), wellFormed(part)]),
  );
}

/** The values that a TOML configuration file may contain. A key whose value is `undefined` is left out. */
type TomlValue = string | number | boolean | readonly string[] | TomlTable;
export type TomlTable = { readonly [key: string]: TomlValue | undefined };

/** Encodes a table as a TOML document. Keys and strings may contain any text; lone surrogates become U+FFFD. */
export function toToml(table: TomlTable): string {
  return stringify(wellFormed(table));
}

/** Matches every character except printable ASCII. */
const NOT_PRINTABLE_ASCII = /[^\x20-\x7e]/gu;

/**
 * Encodes a JSON value as a YAML document that every parser reads as the same value: JSON in which all characters except printable ASCII
 * are escaped. Lone surrogates become U+FFFD. The package `yaml` is not used here because it writes characters such as U+0085 and U+009F
 * unescaped, which PyYAML, the parser of mini-SWE-agent, changes or refuses.
 */
export function toYaml(value: unknown): string {
  return JSON.stringify(wellFormed(value)).replaceAll(NOT_PRINTABLE_ASCII, (character) => {
    const code = character.codePointAt(0) ?? 0;
    return code > 0xffff ? `\\U${hex(code, 8)}` : `\\u${hex(code, 4)}`;
  });
}

function hex(code: number, digits: number): string {
  return code.toString(16).padStart(digits, '0');
}

/**
 * Name of a variable whose value is a dollar sign, for programs that replace `$NAME` and `${NAME}` in their configuration and have no
 * escape.
 */
const DOLLAR = 'FLOE_DOLLAR';
/** Name of a variable whose value is an escaped dollar sign, for texts in which such a program replaces variables a second time. */
const ESCAPED_DOLLAR = 'FLOE_QUOTED_DOLLAR';

/** The variables to which the results of {@link escapeDollars} and {@link escapeDollarsTwice} refer, with their values. */
export const DOLLAR_ENV: Readonly<Record<string, string>> = { [DOLLAR]: '$', [ESCAPED_DOLLAR]: '\\$' };

/**
 * Escapes the strings of a JSON value, but not its keys, for a program that replaces variables in them once: each dollar sign
 * becomes a variable whose value is a dollar sign.
 */
export function escapeDollars<Value>(value: Value): Value {
  return withVariable(value, DOLLAR) as Value;
}

/**
 * Does the same as {@link escapeDollars} for strings in which variables are replaced twice, and in which a backslash escapes a dollar
 * sign the second time.
 */
export function escapeDollarsTwice<Value>(value: Value): Value {
  return withVariable(value, ESCAPED_DOLLAR) as Value;
}

function withVariable(value: unknown, name: string): unknown {
  if (typeof value === 'string') return value.replaceAll('$', () => `\${${name}}`);
  if (Array.isArray(value)) return value.map((part) => withVariable(part, name));
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, withVariable(part, name)]));
}
