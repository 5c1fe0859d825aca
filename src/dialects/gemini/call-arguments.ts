import { isJsonObject, type JsonObject } from './schema.ts';

/** Stands for argument text that is no JSON object, which `args` has no other place for. Claude Code's own name for it. */
const WRAPPER = '__unparsedToolInput';

/**
 * The JSON text of `args`: as sampled where it is a JSON object, so that order of keys and spelling of numbers stay.
 * Anything else is wrapped; so is an object that would be taken for a wrapped one.
 */
export function argsJson(raw: string): string {
  if (raw.trim() === '') return '{}';
  try {
    const parsed: unknown = JSON.parse(raw);
    if (isJsonObject(parsed) && unwrapped(parsed) === null) return raw;
  } catch {
    // Not JSON: wrapped below.
  }
  return JSON.stringify({ [WRAPPER]: { raw, len: raw.length } });
}

/** Argument text from an echoed `args`: the raw text of a wrapped one, otherwise compact JSON. */
export function argumentText(args: JsonObject): string {
  return unwrapped(args) ?? JSON.stringify(args);
}

function unwrapped(args: JsonObject): string | null {
  if (!Object.hasOwn(args, WRAPPER) || Object.keys(args).length !== 1) return null;
  const inner = args[WRAPPER];
  if (!isJsonObject(inner) || Object.keys(inner).length !== 2) return null;
  const { raw, len } = inner;
  return typeof raw === 'string' && len === raw.length ? raw : null;
}
