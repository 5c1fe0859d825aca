import { homedir } from 'node:os';
import { isAbsolute, join } from 'node:path';

/**
 * Returns the folder for files that floe has downloaded or installed and could download again: `floe` in `$XDG_CACHE_HOME`, else in
 * `~/.cache`. As the XDG Base Directory Specification demands, an empty or relative `XDG_CACHE_HOME` is ignored.
 */
export function cacheDir(): string {
  const { XDG_CACHE_HOME: base = '' } = process.env;
  return join(isAbsolute(base) ? base : join(homedir(), '.cache'), 'floe');
}
