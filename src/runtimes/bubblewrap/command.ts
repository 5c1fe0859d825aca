import { FloeError } from '../../core/errors.ts';
import { SANDBOX_UID } from '../../core/sandbox.ts';
import type { RuntimeSpec } from '../../schema/index.ts';
import type { StartRequest } from '../runtime.ts';
import { AGENT_HOME, type SandboxHost } from './host.ts';

/** Where the harness finds its proxy in a sandbox without network; far from the ports that programs like to use. */
export const RELAY_PORT = 24417;
/** Where the relay and its libraries are seen in the sandbox. */
const RELAY_DIR = '/.floe';
const RELAY_LIB = `${RELAY_DIR}/relay`;
const RELAY_NODE = `${RELAY_DIR}/node`;
const RELAY_SOCKET = `${RELAY_DIR}/proxy.sock`;
/** See proxy-relay.ts. */
const RELAY_ENV_PREFIX = '_FLOE_RELAYED_';
/** The relay's memory is the price of every session, and it only copies bytes. */
const RELAY_NODE_FLAGS = ['--max-semi-space-size=1', '--max-old-space-size=64', '--no-warnings'];

/**
 * The first process of a sandbox: it reaps what is orphaned in there, and its end is the end of everything else. bwrap's
 * own would outlive bwrap, and be left to the host's first process to reap. Without the `exit`, some shells become the
 * command instead of waiting for it.
 */
const INIT = ['/bin/sh', '-c', '"$@"; exit "$?"', 'floe-init'];

const SANDBOX_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

/** Directories that the sandbox's own files cannot replace. */
const RESERVED = ['/', '/bin', '/dev', '/etc', '/lib', '/lib64', '/proc', '/sbin', '/sys', '/usr', RELAY_DIR];

/** Directories of the session's tmpfs: its name there, and where the sandbox sees it. */
export const ARTIFACTS_DIR = '/artifacts';
export const LOGS_DIR = '/logs';

/** Places below the session's mount point, as the holder makes them. */
export type HolderLayout = {
  /** Where the session's tmpfs is mounted in the holder's namespace. */
  readonly base: string;
  /** Index below `in/` of each host path that the holder bound. */
  readonly bound: ReadonlyMap<string, number>;
};

/** Throws `schema_violation` unless the path can be the working directory of a sandbox. */
export function checkWorkdir(spec: RuntimeSpec): void {
  const { workdir } = spec;
  const problem = !workdir.startsWith('/')
    ? 'must be an absolute path'
    : workdir.split('/').some((part) => part === '..' || part === '.')
      ? 'must not contain "." or ".." parts'
      : RESERVED.includes(workdir.replace(/\/+$/, '') || '/') ||
          (spec.image === null && RESERVED.some((dir) => dir !== '/' && workdir.startsWith(`${dir}/`)))
        ? 'is a directory of the system'
        : null;
  if (problem !== null) {
    throw new FloeError('schema_violation', `runtime.workdir: ${workdir} ${problem}`, { path: 'runtime.workdir' });
  }
}

/** The bwrap options that are the same for every command of a session. */
export function sandboxArgs(host: SandboxHost, request: StartRequest, layout: HolderLayout): string[] {
  const { spec } = request;
  const at = (hostPath: string): string => `${layout.base}/in/${layout.bound.get(hostPath)}`;
  const own = (name: string): string => `${layout.base}/${name}`;
  const args = [
    ...['--unshare-user', '--unshare-pid', '--unshare-ipc', '--unshare-uts', '--unshare-cgroup-try'],
    ...(spec.network === 'none' ? ['--unshare-net'] : []),
    ...['--die-with-parent', '--as-pid-1', '--new-session', '--clearenv', '--cap-drop', 'ALL', '--disable-userns'],
    ...['--uid', String(SANDBOX_UID), '--gid', String(SANDBOX_UID), '--hostname', 'floe'],
  ];
  const share = at(host.shareDir);
  if (spec.image === null) {
    args.push(...host.programArgs, '--ro-bind', `${share}/etc`, '/etc');
    for (const [source, target] of host.etcBinds) args.push('--ro-bind', source, target);
  } else {
    args.push('--bind', own('root'), '/');
    args.push(
      '--ro-bind',
      own('in/accounts/passwd'),
      '/etc/passwd',
      '--ro-bind',
      own('in/accounts/group'),
      '/etc/group',
    );
    args.push('--ro-bind', `${share}/etc/hosts`, '/etc/hosts');
  }
  if (spec.network === 'host') args.push('--ro-bind-try', '/etc/resolv.conf', '/etc/resolv.conf');
  args.push('--proc', '/proc', '--dev', '/dev', '--bind', own('shm'), '/dev/shm', '--remount-ro', '/dev');
  args.push('--bind', own('tmp'), '/tmp', '--bind', own('vartmp'), '/var/tmp', '--bind', own('run'), '/run');
  args.push(
    '--bind',
    own('home'),
    AGENT_HOME,
    '--bind',
    own('artifacts'),
    ARTIFACTS_DIR,
    '--bind',
    own('logs'),
    LOGS_DIR,
  );
  if (spec.image === null) args.push('--bind', own('work'), spec.workdir);
  for (const mount of request.readOnlyMounts) args.push('--ro-bind', at(mount.hostPath), mount.sandboxPath);
  args.push('--ro-bind', `${share}/relay`, RELAY_LIB, '--ro-bind', at(process.execPath), RELAY_NODE);
  return args;
}

/** The options of one command, and what goes behind `--`. */
export function commandArgs(
  host: SandboxHost,
  command: {
    readonly argv: readonly string[];
    readonly cwd: string;
    readonly env: Readonly<Record<string, string>>;
    /** Path of the proxy's socket in the holder's namespace; null: without a relay. */
    readonly relaySocket: string | null;
    /** The root is bwrap's own, not an image. */
    readonly plainRoot: boolean;
  },
): { readonly options: string[]; readonly argv: string[] } {
  const { relaySocket } = command;
  const options: string[] = [];
  if (relaySocket !== null) options.push('--ro-bind', relaySocket, RELAY_SOCKET);
  // The root that bwrap makes is memory without a limit; only the session's own directories may grow.
  if (command.plainRoot) options.push('--remount-ro', '/');
  for (const [name, value] of Object.entries(command.env)) {
    options.push('--setenv', relaySocket === null ? name : RELAY_ENV_PREFIX + name, value);
  }
  options.push('--chdir', command.cwd);
  if (relaySocket === null) return { options, argv: [...INIT, ...command.argv] };
  const loader = host.loader === null ? [] : [`${RELAY_LIB}/${host.loader}`, '--library-path', RELAY_LIB];
  const relay = [RELAY_NODE, ...RELAY_NODE_FLAGS, `${RELAY_LIB}/proxy-relay.mjs`];
  const how = [String(RELAY_PORT), RELAY_SOCKET, RELAY_ENV_PREFIX];
  return { options, argv: [...INIT, ...loader, ...relay, ...how, ...command.argv] };
}

/** What every command in a sandbox finds in its environment. */
export function baseEnvironment(home: string): Record<string, string> {
  return {
    PATH: SANDBOX_PATH,
    HOME: home,
    USER: 'agent',
    LOGNAME: 'agent',
    SHELL: '/bin/sh',
    LANG: 'C.UTF-8',
    TERM: 'dumb',
  };
}

/** Throws `schema_violation` for what cannot be an environment or an argument: NUL ends a string for the kernel. */
export function refuseNul(what: string, values: Iterable<string>): void {
  for (const value of values) {
    if (value.includes('\0')) throw new FloeError('schema_violation', `${what} contains a NUL character`);
  }
}

export function checkEnvironment(env: Readonly<Record<string, string>>): void {
  for (const [name, value] of Object.entries(env)) {
    if (name === '' || name.includes('=') || name.includes('\0')) {
      throw new FloeError('schema_violation', `env: ${JSON.stringify(name)} cannot be the name of a variable`);
    }
    refuseNul(`env.${name}`, [value]);
  }
}
