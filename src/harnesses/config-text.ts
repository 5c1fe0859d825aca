/** Holds a dollar sign, for programs that replace `$NAME` and `${NAME}` in their configuration and know no way to quote it. */
const DOLLAR = 'FLOE_DOLLAR';
/** Holds a quoted dollar sign, for what such a program replaces a second time. */
const QUOTED_DOLLAR = 'FLOE_QUOTED_DOLLAR';

/** The environment that {@link literal} and {@link twiceLiteral} count on. */
export const LITERAL_ENV: Readonly<Record<string, string>> = { [DOLLAR]: '$', [QUOTED_DOLLAR]: '\\$' };

/**
 * A JSON value whose strings, but for the keys, arrive as they are in a program that replaces variables in them once: what
 * it finds to replace are the dollar signs themselves.
 */
export function literal<Value>(value: Value): Value {
  return mapped(value, DOLLAR) as Value;
}

/** As {@link literal}, for what is replaced once more, in a form in which a backslash quotes. */
export function twiceLiteral<Value>(value: Value): Value {
  return mapped(value, QUOTED_DOLLAR) as Value;
}

function mapped(value: unknown, name: string): unknown {
  if (typeof value === 'string') return value.replaceAll('$', () => `\${${name}}`);
  if (Array.isArray(value)) return value.map((part) => mapped(part, name));
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, mapped(part, name)]));
}
