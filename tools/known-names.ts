import { FloeError } from '@floe-rl/core';

/**
 * Returns the names in the value of an option, which are separated by commas; `null` when the option is not given. Throws `bad_request`, which
 * lists the known names, for any other name.
 */
export function knownNames(option: string, text: string | null, known: readonly string[]): readonly string[] | null {
  if (text === null) return null;
  const names = text.split(',');
  const unknown = names.find((name) => !known.includes(name));
  if (unknown === undefined) return names;
  throw new FloeError(
    'bad_request',
    `--${option}: there is no ${JSON.stringify(unknown)}; there are ${known.join(', ')}`,
  );
}
