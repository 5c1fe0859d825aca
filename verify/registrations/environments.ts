// Installs the packages of NeMo Gym, verifiers, OpenEnv and others from PyPI, at fixed versions, into one virtual environment for each.
import { UvEnvironments } from '../services/uv.ts';

/** The environments are in `$FLOE_REGISTRATIONS_HOME`, else in a folder of the user's cache directory. */
const environments = new UvEnvironments('registrations', 'FLOE_REGISTRATIONS_HOME');

/** The command that installs everything that the program needs. */
export const INSTALL_COMMAND = 'npm run verify -- registrations --install';

/** Returns the Python program of an environment; `null` when the environment is not installed with the given packages. */
export function installedPython(name: string, packages: readonly string[]): string | null {
  return environments.installedPython(name, [packages]);
}

/** Installs an environment, unless it is installed. Throws an Error that names the command that failed. */
export function installEnvironment(name: string, packages: readonly string[]): void {
  environments.install(name, [packages]);
}
