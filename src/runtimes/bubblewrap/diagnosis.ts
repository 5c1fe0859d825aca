import { access, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { HOST_PATH } from '../environment.ts';
import type { RuntimeProblem } from '../runtime.ts';

/** Name of the package that contains a program, where it differs from the program's name. */
const PACKAGES: Readonly<Record<string, string>> = {
  bwrap: 'bubblewrap',
  unshare: 'util-linux',
  nsenter: 'util-linux',
  mount: 'util-linux',
  setpriv: 'util-linux',
  find: 'findutils',
};

const INSTALLERS = [
  ['apt-get', 'apt-get install -y'],
  ['dnf', 'dnf install -y'],
  ['apk', 'apk add'],
] as const;

/** Kernel settings that can forbid user namespaces: path, the value that forbids them, a value that allows them. */
const SWITCHES = [
  ['kernel/unprivileged_userns_clone', 0, 1],
  ['kernel/apparmor_restrict_unprivileged_userns', 1, 0],
  ['user/max_user_namespaces', 0, 15000],
] as const;

/**
 * Finds out why bubblewrap does not work on this host, and returns the problem and a command that solves it. `missing` is a program that
 * is not installed, `failure` the error message of a sandbox that could not be started; each is `null` when it does not apply.
 */
export async function diagnose({
  missing,
  failure,
}: {
  readonly missing: string | null;
  readonly failure: string | null;
}): Promise<RuntimeProblem> {
  if (process.platform !== 'linux') {
    return { problem: 'bubblewrap needs Linux', remedy: 'run the gateway on Linux, or use `runtime.backend: local`' };
  }
  if (missing !== null) {
    const installer = await installCommand();
    return { problem: `${missing} is not installed`, remedy: `${installer} ${PACKAGES[missing] ?? missing}` };
  }
  for (const [name, forbids, allows] of SWITCHES) {
    const value = await readFile(join('/proc/sys', name), 'utf8').catch(() => null);
    if (value !== null && Number(value) === forbids) {
      const key = name.replace('/', '.');
      return { problem: `user namespaces are blocked: ${key} is ${forbids}`, remedy: `sysctl -w ${key}=${allows}` };
    }
  }
  return {
    problem: `a sandbox cannot be started: ${failure?.trim() ?? 'unknown reason'}`,
    remedy:
      'in a container, start it with --cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined',
  };
}

async function installCommand(): Promise<string> {
  for (const [program, command] of INSTALLERS) {
    for (const dir of HOST_PATH.split(':')) {
      const installed = await access(join(dir, program)).then(
        () => true,
        () => false,
      );
      if (installed) return command;
    }
  }
  return 'install the package';
}
