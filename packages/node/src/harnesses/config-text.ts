/**
 * This file encodes values of a task, which may contain any strings. It encodes them as TOML, as YAML, and for programs that replace
 * variables in their configuration.
 */

import { wellFormed } from '@floe-rl/core';
import { stringify } from 'smol-toml';

/** A value in a TOML configuration file. */
type TomlValue = string | number | boolean | readonly string[] | TomlTable;
/** A TOML table. A key with the value `undefined` is left out of the file. */
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
 * Name of an environment variable that contains a dollar sign. It is used for programs that replace `$NAME` and `${NAME}` in their
 * configuration and have no escape sequence for a dollar sign.
 */
const DOLLAR = 'FLOE_DOLLAR';
/**
 * Name of an environment variable that contains an escaped dollar sign, `\$`. It is used for texts in which a program replaces variables
 * twice, because the second replacement would treat a plain dollar sign as the start of a variable.
 */
const ESCAPED_DOLLAR = 'FLOE_QUOTED_DOLLAR';

/** The environment variables that {@link escapeDollars} and {@link escapeDollarsTwice} refer to, with their values. */
export const DOLLAR_ENV: Readonly<Record<string, string>> = { [DOLLAR]: '$', [ESCAPED_DOLLAR]: '\\$' };

/**
 * Escapes dollar signs in the strings of a JSON value for a program that replaces variables in strings. Each dollar sign is replaced by a
 * reference to an environment variable that contains a dollar sign. Keys are not changed.
 */
export function escapeDollars<Value>(value: Value): Value {
  return withVariable(value, DOLLAR) as Value;
}

/**
 * Escapes dollar signs like {@link escapeDollars}, for a program that replaces variables a second time in the result of the first
 * replacement. The program must read `\$` as a dollar sign the second time.
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
