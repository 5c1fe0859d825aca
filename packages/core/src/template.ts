import { type FieldIssue, fieldErrors } from './fields.ts';
import { containerSize, type JsonSize, jsonSize, memberSize, requireTaskSize } from './json-size.ts';

/** Pattern of a field in a placeholder. */
const KEY = '[\\p{L}\\p{M}\\p{N}_-]+';

/** What one call of {@link fillTemplate} fills in, and the placeholders that it could not fill so far. */
type Filling = {
  readonly variable: string;
  readonly value: unknown;
  readonly placeholder: RegExp;
  /** Matches placeholders of the variable, and text that looks like one but is invalid. */
  readonly anyPlaceholder: RegExp;
  readonly issues: FieldIssue[];
};

/**
 * Makes a task from its template. In the returned copy, fields of `value` replace the placeholders `{{variable.path}}`, and `value` itself
 * replaces `{{variable}}`. Fields of lists are numbers, as in `{{row.tags.0}}`. A text that consists of one placeholder becomes the field's
 * value, whatever its type. Inside a longer text, a value that is not a text is written as JSON. Other text between braces is kept.
 *
 * Throws `schema_violation` with an issue for each placeholder of a field that `value` does not have. Text such as `{{row.a b}}` or
 * `{{row[0]}}` is refused too, because it would otherwise be sampled as it is written. Throws `body_too_large`, before anything is filled in,
 * when the task would exceed the size of a submitted task.
 */
export function fillTemplate(template: unknown, variable: string, value: unknown): unknown {
  const placeholder = new RegExp(`\\{\\{\\s*${variable}((?:\\.${KEY})*)\\s*\\}\\}`, 'gu');
  const anyPlaceholder = new RegExp(`\\{\\{\\s*${variable}\\s*[.[][^{}]*\\}\\}`, 'gu');
  const filling: Filling = { variable, value, placeholder, anyPlaceholder, issues: [] };
  refuseOversized(template, filling);
  const filled = fillValue(template, filling, '');
  if (filling.issues.length === 0) return filled;
  throw fieldErrors(filling.issues);
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

/** The sizes of one filled template, and the text of the template that takes most of them. */
type Measuring = {
  readonly filling: Filling;
  /** Sizes of fields by their paths, because a template may name a field thousands of times. */
  readonly fields: Map<string, JsonSize & { readonly bytesInText: number }>;
  readonly known: Map<object, JsonSize>;
  largest: { readonly place: string; readonly bytes: number };
};

/** Throws `body_too_large` with the place of the largest filled text when the filled template would exceed the size of a task. */
function refuseOversized(template: unknown, filling: Filling): void {
  const measuring: Measuring = { filling, fields: new Map(), known: new Map(), largest: { place: '', bytes: -1 } };
  const size = filledSize(template, measuring, '');
  const { place, bytes } = measuring.largest;
  const path = place === '' ? 'the template' : place;
  const share = bytes < 0 ? '' : `, with ${bytes} bytes here,`;
  requireTaskSize(size, `${path}: the filled template${share}`, path);
}

/** Returns the size that {@link fillValue} would give a template, computed from the sizes of the template's texts and of the fields. */
function filledSize(template: unknown, measuring: Measuring, place: string): JsonSize {
  if (typeof template === 'string') return filledTextSize(template, measuring, place);
  if (typeof template !== 'object' || template === null) return jsonSize(template);
  if (Array.isArray(template)) {
    return containerSize(template.map((element, index) => filledSize(element, measuring, below(place, String(index)))));
  }
  return containerSize(
    Object.entries(template).map(([key, value]) => memberSize(key, filledSize(value, measuring, below(place, key)))),
  );
}

function filledTextSize(text: string, measuring: Measuring, place: string): JsonSize {
  const { placeholder } = measuring.filling;
  let size: JsonSize | null = null;
  let filledBytes = 0;
  for (const [found, path = ''] of text.matchAll(placeholder)) {
    const field = fieldSize(measuring, path);
    if (found === text) size = field;
    filledBytes += field.bytesInText;
  }
  if (size === null) {
    const literal = jsonSize(text.replaceAll(placeholder, ''));
    if (filledBytes === 0) return literal;
    size = { ...literal, bytes: literal.bytes + filledBytes };
  }
  if (size.bytes > measuring.largest.bytes) measuring.largest = { place, bytes: size.bytes };
  return size;
}

/** Returns the size of a field, alone and inside a longer text. A missing field has the size of `null`; it is reported later. */
function fieldSize({ filling, fields, known }: Measuring, path: string): JsonSize & { readonly bytesInText: number } {
  const measured = fields.get(path);
  if (measured !== undefined) return measured;
  const value = valueAt(filling.value, pathOf(path)) ?? null;
  const size = jsonSize(value, known);
  const bytesInText = typeof value === 'string' ? size.bytes - 2 : size.quotedBytes;
  const field = { ...size, bytesInText };
  fields.set(path, field);
  return field;
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
  const value = valueAt(root, pathOf(path));
  if (value !== undefined) return value;
  const name = `${variable}${path}`;
  const where = place === '' ? 'the template' : `the template's field ${place}`;
  issues.push({ path: name, message: `is missing, and ${where} needs it for {{${name}}}` });
  return null;
}

/** Returns the fields of a placeholder's path, which begins with a dot. */
function pathOf(path: string): string[] {
  return path.split('.').slice(1);
}

function below(place: string, key: string): string {
  return place === '' ? key : `${place}.${key}`;
}
