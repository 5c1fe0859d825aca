import { fieldError, valueAt } from '@floe-rl/core';

/** Maximum number of references that may lead to one another. */
const MAX_DEPTH = 32;
const OPENING = `$\{`;
const REFERENCE = /\$\{([^${}]*)\}/g;
const PATH = /^[A-Za-z_][\w-]*(?:\.[\w-]+)*$/;

/**
 * Returns a copy of `value`, a part of `root`, in which the references `${a.b}` are replaced by the values at these paths of `root`. A text
 * that is one reference becomes the value, whatever its type. Throws `schema_violation`, which names the field, for a reference to what is
 * missing or for a circle of references. References of another kind, such as `${oc.env:NAME}`, are refused as well: what a file means must not
 * depend on the machine that reads it.
 */
export function interpolate(value: unknown, root: unknown, path: string, depth = 0): unknown {
  if (typeof value === 'string') return interpolateText(value, root, path, depth);
  if (Array.isArray(value)) return value.map((item, index) => interpolate(item, root, `${path}.${index}`, depth));
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, field]) => [key, interpolate(field, root, `${path}.${key}`, depth)]),
  );
}

function interpolateText(text: string, root: unknown, path: string, depth: number): unknown {
  if (!text.includes(OPENING)) return text;
  if (depth >= MAX_DEPTH) throw fieldError(path, `its references lead to one another without end: ${text}`);
  const whole = /^\$\{([^${}]*)\}$/.exec(text.trim());
  if (whole !== null) return referred(whole[1] ?? '', root, path, depth);
  const filled = text.replaceAll(REFERENCE, (_, name: string) => {
    const value = referred(name, root, path, depth);
    return typeof value === 'string' ? value : JSON.stringify(value);
  });
  if (filled.includes(OPENING)) throw fieldError(path, `has a reference that cannot be read: ${text}`);
  return filled;
}

function referred(reference: string, root: unknown, path: string, depth: number): unknown {
  const name = reference.trim();
  if (name.startsWith('oc.env:')) {
    throw fieldError(path, `\${${name}} is a variable of the environment of a process; write its value instead`);
  }
  if (!PATH.test(name)) throw fieldError(path, `\${${name}} is not a path of fields, such as \${a.b}`);
  const value = valueAt(root, name.split('.'));
  if (value === undefined) throw fieldError(path, `\${${name}}: the file has no field ${name}`);
  return interpolate(value, root, path, depth + 1);
}
