import { lstat, mkdir, readFile, readlink, realpath, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { SANDBOX_UID } from '../../api/files.ts';
import { AGENT_HOME } from '../../workspace/environment.ts';
import { type Architecture, DENIED_CALLS } from '../denied-calls.ts';
import { atLeastLinux } from '../host-limits.ts';
import { copySandboxPrograms, type SandboxPrograms } from '../sandbox-programs.ts';
import { syscallFilter } from './syscall-filter.ts';

/**
 * Paths of the host's /etc that are mounted in sandboxes. Programs need these files to run and to verify certificates, and none of the
 * files contains a secret.
 */
const ETC_FROM_HOST = [
  '/etc/alternatives',
  '/etc/ca-certificates.conf',
  '/etc/ld.so.cache',
  '/etc/localtime',
  '/etc/mime.types',
  '/etc/pki/tls/certs',
  '/etc/pki/ca-trust/extracted',
  '/etc/protocols',
  '/etc/services',
  '/etc/ssl/certs',
  '/etc/ssl/openssl.cnf',
];

const PASSWD_LINE = `agent:x:${SANDBOX_UID}:${SANDBOX_UID}:agent:${AGENT_HOME}:/bin/sh`;
const GROUP_LINE = `agent:x:${SANDBOX_UID}:`;
const ETC_FILES: Readonly<Record<string, string>> = {
  // words: quoted
  passwd: `root:x:0:0:root:/root:/bin/sh\n${PASSWD_LINE}\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n`,
  group: `root:x:0:\n${GROUP_LINE}\nnogroup:x:65534:\n`,
  hosts: '127.0.0.1 localhost floe\n::1 localhost\n',
  hostname: 'floe\n',
  'nsswitch.conf': 'passwd: files\ngroup: files\nhosts: files dns\n',
  'resolv.conf': '',
};

/**
 * Files of /proc that describe the host to root: the keys in the kernel's keyrings, the kernel's memory, and its timers. They are hidden,
 * because a sandbox whose image belongs to root could read them.
 */
const HIDDEN_PROC_FILES = [
  ...['keys', 'key-users', 'kcore', 'kmsg', 'kpagecgroup', 'kpagecount', 'kpageflags'],
  ...['sched_debug', 'slabinfo', 'timer_list', 'vmallocinfo'],
].map((name) => `/proc/${name}`);

/**
 * Entries of /proc through which root changes the settings of the kernel. For these entries the kernel checks only the user id of root and no
 * capability. A sandbox whose image belongs to root has this user id.
 */
const READ_ONLY_PROC_PATHS = ['acpi', 'bus', 'driver', 'fs', 'irq', 'mtrr', 'scsi', 'sys', 'sysrq-trigger', 'tty'].map(
  (name) => `/proc/${name}`,
);

/** Names of top-level directories that contain programs or libraries. On a system with merged /usr they are symbolic links into /usr. */
const PROGRAM_DIRS = ['bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32'];

/** Properties of this host on which the set-up of sandboxes depends. They are determined once per provider. */
export type SandboxHost = {
  /**
   * How namespaces are created. With `root`, the gateway creates them with root privileges, and each sandbox has a user id of its own. With
   * `user`, the gateway's user creates them without privileges.
   */
  readonly mode: 'root' | 'user';
  /**
   * How a sandbox gets the files of a snapshot. Overlays need the extended attributes that tmpfs has since Linux 6.6; without them, a
   * directory that replaces a removed one cannot be created.
   */
  readonly snapshots: 'overlay' | 'copy';
  /** Arguments of bwrap that mount the host's programs in the sandbox. */
  readonly programArgs: readonly string[];
  /** Files and directories of the host's /etc to mount in each sandbox, as `[host path, sandbox path]`. */
  readonly etcBinds: readonly (readonly [string, string])[];
  /** Host directory of the files that all sandboxes share. Its `etc/` is mounted as their /etc, and `relay/` contains the proxy relay. */
  readonly shareDir: string;
  /** File with the system call filter that bwrap installs in each sandbox. */
  readonly filterFile: string;
  /** Files of /proc that describe the host, as far as the kernel has them. In a sandbox, an empty file is mounted over each. */
  readonly hiddenProcFiles: readonly string[];
  /** Files and directories of /proc that change the host, as far as the kernel has them. A sandbox can only read them. */
  readonly readOnlyProcPaths: readonly string[];
  /** The proxy relay, and the programs that run tools: the box server, the MCP server, and the program that operates a browser. */
  readonly programs: SandboxPrograms<'relay' | 'box' | 'mcp' | 'browser'>;
};

/** Determines the host's properties, and writes the files that all sandboxes share into the directory `shareDir`. */
export async function describeHost(shareDir: string, architecture: Architecture): Promise<SandboxHost> {
  await rm(shareDir, { recursive: true, force: true });
  await mkdir(join(shareDir, 'etc'), { recursive: true });
  for (const [name, content] of Object.entries(ETC_FILES)) await writeFile(join(shareDir, 'etc', name), content);
  const etcBinds = await prepareEtcBinds(shareDir);
  const programs = await copySandboxPrograms(join(shareDir, 'relay'), {
    relay: 'proxy-relay',
    box: 'box-server',
    mcp: 'mcp-server',
    browser: 'browser',
  });
  const filterFile = join(shareDir, 'syscall-filter');
  await writeFile(filterFile, syscallFilter(architecture, DENIED_CALLS));
  await writeFile(join(shareDir, 'empty'), '');
  return {
    mode: await hostMode(),
    snapshots: snapshotMethod(),
    programArgs: await programArgs(),
    etcBinds,
    shareDir,
    filterFile,
    hiddenProcFiles: await existing(HIDDEN_PROC_FILES),
    readOnlyProcPaths: await existing(READ_ONLY_PROC_PATHS),
    programs,
  };
}

async function existing(paths: readonly string[]): Promise<string[]> {
  const found: string[] = [];
  for (const path of paths) if ((await stat(path).catch(() => null)) !== null) found.push(path);
  return found;
}

/** Copies the files `passwd` and `group` of an image to the directory `dir` and adds the agent's user, unless its id is already in use. */
export async function writeImageAccounts(image: string, dir: string): Promise<void> {
  for (const [name, line] of [
    ['passwd', PASSWD_LINE],
    ['group', GROUP_LINE],
  ] as const) {
    const own = await readFile(join(image, 'etc', name), 'utf8').catch(() => '');
    const taken = own.split('\n').some((row) => row.split(':')[2] === String(SANDBOX_UID));
    const separator = own === '' || own.endsWith('\n') ? '' : '\n';
    await writeFile(join(dir, name), taken ? own : `${own}${separator}${line}\n`);
  }
}

/**
 * Returns `root` only when the process has the capability CAP_SYS_ADMIN (bit 21). User id 0 is not enough, because the root user of a
 * container often may not mount.
 */
async function hostMode(): Promise<'root' | 'user'> {
  if (process.getuid?.() !== 0) return 'user';
  const status = await readFile('/proc/self/status', 'latin1');
  const effective = BigInt(`0x${/^CapEff:\s*([0-9a-f]+)$/m.exec(status)?.[1] ?? '0'}`);
  return (effective >> 21n) & 1n ? 'root' : 'user';
}

/** Returns how sandboxes get the files of snapshots on this host. */
export function snapshotMethod(): SandboxHost['snapshots'] {
  return atLeastLinux(6, 6) ? 'overlay' : 'copy';
}

async function programArgs(): Promise<string[]> {
  const args = ['--ro-bind', '/usr', '/usr'];
  for (const name of PROGRAM_DIRS) {
    const path = `/${name}`;
    const info = await lstat(path).catch(() => null);
    if (info?.isSymbolicLink()) args.push('--symlink', await readlink(path), path);
    else if (info?.isDirectory()) args.push('--ro-bind', path, path);
  }
  return args;
}

/**
 * Creates a mount point in `shareDir` for each path of {@link ETC_FROM_HOST} that exists, because bwrap cannot create mount points in the
 * sandbox's read-only /etc. Returns the mounts as `[host path, sandbox path]`.
 */
async function prepareEtcBinds(shareDir: string): Promise<[string, string][]> {
  const binds: [string, string][] = [];
  for (const path of ETC_FROM_HOST) {
    const source = await realpath(path).catch(() => null);
    if (source === null) continue;
    const point = join(shareDir, path);
    if ((await stat(source)).isDirectory()) {
      await mkdir(point, { recursive: true });
    } else {
      await mkdir(join(point, '..'), { recursive: true });
      await writeFile(point, '');
    }
    binds.push([source, path]);
  }
  return binds;
}
