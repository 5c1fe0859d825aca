import { ROOT_CAPABILITIES } from '../boxed/placement.ts';
import { DENIED_CALLS } from '../denied-calls.ts';

/**
 * The denied system calls. Apptainer denies each call with `EPERM`, but the C library uses `clone` instead of `clone3` only after `ENOSYS`, so
 * that no program could start a thread if `clone3` were denied.
 */
export const APPTAINER_DENIED_CALLS = DENIED_CALLS.filter(({ name }) => name !== 'clone3');

/** Parts of the command that starts a sandbox. */
export type ApptainerCommand = {
  /** The program Apptainer. */
  readonly program: string;
  /** Path on the host of the root file system: a directory or a SIF file. */
  readonly image: string;
  /** Directory on the host for what the sandbox writes over its image. */
  readonly overlay: string;
  /** File on the host with the system call filter. */
  readonly seccomp: string;
  /** Read-only mounts, as pairs of a host path and a path in the sandbox. */
  readonly mounts: readonly (readonly [string, string])[];
  readonly hasNetwork: boolean;
  readonly argv: readonly string[];
};

/** Returns the arguments that start a sandbox. Its user is root of a user namespace, and outside of it the user of this process. */
export function apptainerArgs(command: ApptainerCommand): string[] {
  const capabilities = ROOT_CAPABILITIES.map((name) => `CAP_${name}`).join(',');
  return [
    ...[command.program, '--silent', 'exec', '--containall', '--no-eval'],
    ...['--no-mount', 'bind-paths,cwd,home,hostfs,sys,tmp', '--no-home', '--pwd', '/', '--hostname', 'floe'],
    // The namespace has only root's user id, because files with other ids could not be removed from the host.
    ...['--fakeroot', '--ignore-subuid', '--ignore-fakeroot-command', '--no-privs', '--add-caps', capabilities],
    ...['--security', `seccomp:${command.seccomp}`],
    ...(command.hasNetwork ? [] : ['--net', '--network', 'none']),
    ...['--overlay', command.overlay],
    ...command.mounts.flatMap(([source, target]) => ['--mount', mountOption(source, target)]),
    command.image,
    ...command.argv,
  ];
}

/** Returns a read-only mount in Apptainer's notation, a line of comma-separated values. */
function mountOption(source: string, target: string): string {
  const field = (text: string): string => `"${text.replaceAll('"', '""')}"`;
  return ['type=bind', field(`source=${source}`), field(`destination=${target}`), 'ro'].join(',');
}
