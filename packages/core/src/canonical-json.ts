import { isRecord } from './record.ts';

/**
 * Returns the JSON text of `value` with the keys of every object sorted. Two values that differ only in the order of keys have equal texts.
 * Keys whose value is `undefined` are left out, as in `JSON.stringify`.
 */
export function canonicalJson(value: unknown): string {
  return JSON.stringify(value, (_, inner: unknown) => {
    if (!isRecord(inner)) return inner;
    return Object.fromEntries(Object.entries(inner).sort(([a], [b]) => (a < b ? -1 : 1)));
  });
}
