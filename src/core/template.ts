import { FloeError } from './errors.ts';

type Issue = { readonly path: string; readonly message: string };

/** Pattern of a field in a placeholder. */
const KEY = '[\\p{L}\\p{M}\\p{N}_-]+';

/** What one call of {@link fillTemplate} fills in, and the placeholders that it could not fill so far. */
type Filling = {
  readonly variable: string;
  readonly value: unknown;
  readonly placeholder: RegExp;
  /** Matches a placeholder of the variable and what looks like one. */
  readonly anyPlaceholder: RegExp;
  readonly issues: Issue[];
};

/**
 * Returns a copy of a template in which the placeholders `{{variable.path}}` are replaced by fields of `value`; `{{variable}}` is all of it.
 * Fields of lists are numbers, as in `{{row.tags.0}}`. A text that consists of one placeholder becomes the field's value, whatever its
 * type; inside a longer text, a value that is not a text is written as JSON. Other text between braces is kept. Throws `schema_violation`
 * with an issue for each placeholder of a field that `value` does not have, and for text such as `{{row.a b}}` or `{{row[0]}}`, which would
 * otherwise be sampled as it is written.
 */
export function fillTemplate(template: unknown, variable: string, value: unknown): unknown {
  const placeholder = new RegExp(`\\{\\{\\s*${variable}((?:\\.${KEY})*)\\s*\\}\\}`, 'gu');
  const anyPlaceholder = new RegExp(`\\{\\{\\s*${variable}\\s*[.[][^{}]*\\}\\}`, 'gu');
  const filling: Filling = { variable, value, placeholder, anyPlaceholder, issues: [] };
  const filled = fillValue(template, filling, '');
  const [first, ...others] = filling.issues;
  if (first === undefined) return filled;
  const more = others.length === 0 ? '' : ` (and ${others.length} more)`;
  throw new FloeError('schema_violation', `${first.path}: ${first.message}${more}`, { issues: filling.issues });
}

function fillValue(template: unknown, filling: Filling, place: string): unknown {
  if (typeof template === 'string') return fillText(template, filling, place);
  if (Array.isArray(template)) {
    return template.map((element, index) => fillValue(element, filling, below(place, String(index))));
  }
  if (typeof template !== 'object' || template === null) return template;
  return Object.fromEntries(
    Object.entries(template).map(([key, value]) => [key, fillValue(value, filling, below(place, key))]),
  );
}

function fillText(text: string, filling: Filling, place: string): unknown {
  for (const [found] of text.matchAll(filling.anyPlaceholder)) {
    if (found.replace(filling.placeholder, '') === '') continue;
    const message = `has ${found}, which is not a placeholder: a field has letters, digits, _ and -, and a dot comes before it`;
    filling.issues.push({ path: place === '' ? 'the template' : place, message });
  }
  const [first] = text.matchAll(filling.placeholder);
  if (first !== undefined && first[0] === text) return fieldOf(filling, first[1] ?? '', place);
  return text.replaceAll(filling.placeholder, (_, path: string) => {
    const value = fieldOf(filling, path, place);
    return typeof value === 'string' ? value : JSON.stringify(value);
  });
}

/** Returns the value at a path of fields; `undefined` when there is none. */
export function valueAt(root: unknown, path: readonly string[]): unknown {
  let value = root;
  for (const key of path) {
    const isObject = typeof value === 'object' && value !== null && Object.hasOwn(value, key);
    value = isObject ? (value as Record<string, unknown>)[key] : undefined;
  }
  return value;
}

function fieldOf({ variable, value: root, issues }: Filling, path: string, place: string): unknown {
  const value = valueAt(root, path.split('.').slice(1));
  if (value !== undefined) return value;
  const name = `${variable}${path}`;
  const where = place === '' ? 'the template' : `the template's field ${place}`;
  issues.push({ path: name, message: `is missing, and ${where} needs it for {{${name}}}` });
  return null;
}

function below(place: string, key: string): string {
  return place === '' ? key : `${place}.${key}`;
}
