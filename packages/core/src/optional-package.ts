import { FloeError } from './errors.ts';
import { messageOf } from './thrown.ts';

/**
 * Loads packages that floe can be installed without. `load` imports them. Throws `setup_failed` with the command that installs `packages` when
 * one is missing.
 */
export async function optionalPackages<T>(
  load: () => Promise<T>,
  packages: readonly string[],
  purpose: string,
): Promise<T> {
  try {
    return await load();
  } catch (cause) {
    const command = `npm install ${packages.join(' ')}`;
    const reason = messageOf(cause);
    const message = `${purpose} needs optional packages; install them beside floe with: ${command} (${reason})`;
    throw new FloeError('setup_failed', message, { packages }, cause);
  }
}
