import { FloeError } from '@floe-rl/core';

/** Parses the value of an option that must be an integer of at least 1. Throws `bad_request` with the name of the option. */
export function countOption(name: string, text: string): number {
  const value = Number(text);
  if (Number.isInteger(value) && value >= 1) return value;
  throw new FloeError('bad_request', `${name}: ${text} is not an integer of at least 1`);
}

/** Parses the value of an option that must be an integer of at least 0. Throws `bad_request` with the name of the option. */
export function numberOption(name: string, text: string): number {
  const value = Number(text);
  if (text.trim() !== '' && Number.isInteger(value) && value >= 0) return value;
  throw new FloeError('bad_request', `${name}: ${text} is not an integer of at least 0`);
}

/** Parses the value of an option in seconds, which must be a number of at least 0. Throws `bad_request` with the name of the option. */
export function secondsOption(name: string, text: string): number {
  const value = Number(text);
  if (text.trim() !== '' && Number.isFinite(value) && value >= 0) return value;
  throw new FloeError('bad_request', `${name}: ${text} is not a number of seconds`);
}

export const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'];

/** Returns the values of an option as its help lists them: `a, b or c`. */
export function listed(values: readonly string[]): string {
  return values.length < 2 ? values.join('') : `${values.slice(0, -1).join(', ')} or ${values.at(-1)}`;
}

/** Returns the values of an option with their meanings: `a: …; b: …`. */
export function explained<T extends string>(meanings: Readonly<Record<T, string>>): string {
  return Object.entries(meanings)
    .map(([value, meaning]) => `${value}: ${meaning}`)
    .join('; ');
}

/** Returns the text when it is a log level. Otherwise throws `bad_request` with the list of levels. */
export function levelOption(text: string): string {
  if (LOG_LEVELS.includes(text)) return text;
  throw new FloeError('bad_request', `--log-level: ${text} is not one of ${LOG_LEVELS.join(', ')}`);
}
