import { fieldError } from '@floe-rl/core';
import { bodyError } from '../field-errors.ts';

/**
 * Handles the keys of a Polar request that have no counterpart in floe. A key without an effect is ignored, and the reply names it in
 * `warnings`. A key with an effect that floe lacks is refused.
 */
export class RequestNotes {
  readonly warnings: string[] = [];

  warn(path: string, message: string): void {
    this.warnings.push(`${path}: ${message}`);
  }

  /** Records a warning for every key of `value` that is not in `known`. `path` is the path of `value` in the request. */
  warnUnknown(path: string, value: object, known: object): void {
    for (const key of Object.keys(value)) {
      if (key in known) continue;
      this.warn(path === '' ? key : `${path}.${key}`, 'this key is not known to Polar and is ignored');
    }
  }
}

/**
 * Throws `unsupported` for the key at `path`, unless `neutral` is true. `neutral` means that the value of this key has no effect.
 */
export function refuseUnless(neutral: boolean, path: string, problem: string): void {
  if (!neutral) throw fieldError(path, problem, { code: 'unsupported' });
}

/** Throws `schema_violation` for the key at `path` when its value is not valid. */
export function requireValid(valid: boolean, path: string, message: string): void {
  if (!valid) throw bodyError(path, message);
}

/** Whether a value is `null`, `undefined`, an empty text, an empty list or an empty object. */
export function isEmpty(value: unknown): boolean {
  if (value === null || value === undefined || value === '') return true;
  return typeof value === 'object' && Object.keys(value).length === 0;
}

/** Returns the fields of `value` that are neither `null` nor `undefined`. */
export function present<T extends object>(value: T): { [K in keyof T]?: NonNullable<T[K]> } {
  return Object.fromEntries(Object.entries(value).filter(([, field]) => field !== null && field !== undefined)) as {
    [K in keyof T]?: NonNullable<T[K]>;
  };
}
