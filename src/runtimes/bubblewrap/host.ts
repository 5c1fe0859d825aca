import { execFile } from 'node:child_process';
import { constants } from 'node:fs';
import {
  access,
  chmod,
  copyFile,
  lstat,
  mkdir,
  readFile,
  readlink,
  realpath,
  rm,
  stat,
  writeFile,
} from 'node:fs/promises';
import { release } from 'node:os';
import { basename, join } from 'node:path';
import { promisify } from 'node:util';
import { entryPath } from '../../core/package-root.ts';
import { SANDBOX_UID } from '../../core/sandbox.ts';

/** Where the programs of the host that build sandboxes are looked for; the gateway's own PATH is not trusted with it. */
export const HOST_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

/** Home of the sandboxed user. */
export const AGENT_HOME = '/home/agent';

/** Of the host's /etc only what programs need to run and to check certificates; nothing of it is secret. */
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
  passwd: `root:x:0:0:root:/root:/bin/sh\n${PASSWD_LINE}\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n`,
  group: `root:x:0:\n${GROUP_LINE}\nnogroup:x:65534:\n`,
  hosts: '127.0.0.1 localhost floe\n::1 localhost\n',
  hostname: 'floe\n',
  'nsswitch.conf': 'passwd: files\ngroup: files\nhosts: files dns\n',
  'resolv.conf': '',
};

/** Top-level directories that hold programs; on a merged-/usr system they are links into /usr. */
const PROGRAM_DIRS = ['bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32'];

const run = promisify(execFile);

/** What this host brings for sandboxes; found once per provider. */
export type SandboxHost = {
  /** `root`: namespaces are made with privilege and the sandbox gets a user of its own; `user`: everything unprivileged. */
  readonly mode: 'root' | 'user';
  /** RLIMIT_NPROC counts per user namespace (Linux 5.14), so a limit for the sandbox does not count the host's processes. */
  readonly countsProcessesPerNamespace: boolean;
  /** bwrap arguments that show the host's programs. */
  readonly programArgs: readonly string[];
  /** `[host path, sandbox path]` of single files and directories of /etc. */
  readonly etcBinds: readonly (readonly [string, string])[];
  /** Host directory with `etc/` and `relay/`. */
  readonly shareDir: string;
  /** Name of the dynamic loader in `relay/`; null when Node is linked statically. */
  readonly loader: string | null;
};

/** Looks at the host and writes what all sandboxes share into `shareDir`. */
export async function describeHost(shareDir: string): Promise<SandboxHost> {
  await rm(shareDir, { recursive: true, force: true });
  await mkdir(join(shareDir, 'etc'), { recursive: true });
  await mkdir(join(shareDir, 'relay'));
  for (const [name, content] of Object.entries(ETC_FILES)) await writeFile(join(shareDir, 'etc', name), content);
  const etcBinds = await prepareEtcBinds(shareDir);
  const loader = await copyRelay(join(shareDir, 'relay'));
  return {
    mode: await hostMode(),
    countsProcessesPerNamespace: atLeastLinux(5, 14),
    programArgs: await programArgs(),
    etcBinds,
    shareDir,
    loader,
  };
}

/** `passwd` and `group` of an image with the agent's user added, written to `dir`. */
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

/** The first of the named programs that is not on the host, or null. */
export async function missingProgram(names: readonly string[]): Promise<string | null> {
  for (const name of names) {
    const found = await Promise.all(HOST_PATH.split(':').map((dir) => isExecutable(join(dir, name))));
    if (!found.includes(true)) return name;
  }
  return null;
}

function isExecutable(path: string): Promise<boolean> {
  return access(path, constants.X_OK).then(
    () => true,
    () => false,
  );
}

/** Being root is not enough: a container's root often may not mount. Bit 21 of the capability set is CAP_SYS_ADMIN. */
async function hostMode(): Promise<'root' | 'user'> {
  if (process.getuid?.() !== 0) return 'user';
  const status = await readFile('/proc/self/status', 'latin1');
  const effective = BigInt(`0x${/^CapEff:\s*([0-9a-f]+)$/m.exec(status)?.[1] ?? '0'}`);
  return (effective >> 21n) & 1n ? 'root' : 'user';
}

function atLeastLinux(major: number, minor: number): boolean {
  const [a = 0, b = 0] = release().split('.').map(Number);
  return a > major || (a === major && b >= minor);
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

/** A read-only /etc cannot grow mount points later, so each bind gets its own here. */
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

/**
 * The relay runs in any image, also one without Node or with another C library, so Node's libraries and loader go along.
 */
async function copyRelay(dir: string): Promise<string | null> {
  await copyFile(entryPath(import.meta.url, './proxy-relay.js'), join(dir, 'proxy-relay.mjs'));
  const listing = await run('ldd', [process.execPath], { env: { PATH: HOST_PATH, LC_ALL: 'C' } }).then(
    ({ stdout }) => stdout,
    () => '',
  );
  let loader: string | null = null;
  for (const match of listing.matchAll(/(?:^|\s)(\/\S+)\s+\(0x[0-9a-f]+\)/gm)) {
    const path = match[1] ?? '';
    const name = basename(path);
    await copyFile(path, join(dir, name));
    await chmod(join(dir, name), 0o755);
    if (/^ld[-.]/.test(name) || name.startsWith('ld-')) loader = name;
  }
  return loader;
}
