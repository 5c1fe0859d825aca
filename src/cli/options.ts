import { FloeError } from '../core/errors.ts';

/** A whole number of at least 1. Throws `bad_request`, naming the option. */
export function countOption(name: string, text: string): number {
  const value = Number(text);
  if (Number.isInteger(value) && value >= 1) return value;
  throw new FloeError('bad_request', `${name}: ${text} is not a whole number of at least 1`);
}

/** A number of seconds, 0 or more. Throws `bad_request`, naming the option. */
export function secondsOption(name: string, text: string): number {
  const value = Number(text);
  if (text.trim() !== '' && Number.isFinite(value) && value >= 0) return value;
  throw new FloeError('bad_request', `${name}: ${text} is not a number of seconds`);
}

const LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'];

/** A log level. Throws `bad_request`, naming those there are. */
export function levelOption(text: string): string {
  if (LEVELS.includes(text)) return text;
  throw new FloeError('bad_request', `--log-level: ${text} is none of ${LEVELS.join(', ')}`);
}
