import { access, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { RuntimeProblem } from '../runtime.ts';
import { HOST_PATH } from './host.ts';

/** The package that brings a program, where it is not named like it. */
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

/** Kernel switches that forbid user namespaces, each with the value that does. */
const SWITCHES = [
  ['kernel/unprivileged_userns_clone', 0, 1],
  ['kernel/apparmor_restrict_unprivileged_userns', 1, 0],
  ['user/max_user_namespaces', 0, 15000],
] as const;

/** Says why bubblewrap does not work here and the one command that helps. */
export async function diagnose(seen: { missing: string | null; failure: string | null }): Promise<RuntimeProblem> {
  if (process.platform !== 'linux') {
    return { problem: 'bubblewrap needs Linux', remedy: 'run the gateway on Linux, or use `runtime.backend: local`' };
  }
  if (seen.missing !== null) {
    const installer = await installCommand();
    const name = PACKAGES[seen.missing] ?? seen.missing;
    return { problem: `${seen.missing} is not installed`, remedy: `${installer} ${name}` };
  }
  for (const [name, forbids, allows] of SWITCHES) {
    const value = await readFile(join('/proc/sys', name), 'utf8').catch(() => null);
    if (value !== null && Number(value) === forbids) {
      const key = name.replace('/', '.');
      return { problem: `user namespaces are blocked: ${key} is ${forbids}`, remedy: `sysctl -w ${key}=${allows}` };
    }
  }
  return {
    problem: `a sandbox cannot be started: ${seen.failure?.trim() ?? 'unknown reason'}`,
    remedy:
      'in a container, start it with --cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined',
  };
}

async function installCommand(): Promise<string> {
  for (const [program, command] of INSTALLERS) {
    for (const dir of HOST_PATH.split(':')) {
      const found = await access(join(dir, program)).then(
        () => true,
        () => false,
      );
      if (found) return command;
    }
  }
  return 'install the package';
}
