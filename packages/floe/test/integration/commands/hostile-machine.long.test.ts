import { once } from 'node:events';
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { type AddressInfo, createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect } from 'vitest';
import { itIf, type MissingPart, NOT_LINUX } from '../../../../../test/skip.ts';
import { harnessDir } from '../../../src/commands/home.ts';
import {
  asUser,
  CLI,
  freshClone,
  hide,
  noHiding,
  noMounts,
  noNamespaceLimit,
  noOtherUser,
  ownedByUser,
  readOnly,
  readOnlyMount,
  run,
  smallDisk,
  withMounts,
  withoutUserNamespaces,
} from '../../commands/machine.ts';

/** One state of a machine and a command that fails because of it. */
type Row = {
  readonly title: string;
  /** What the machine lacks for this row's test, so that the test is skipped; `null` when nothing is missing. */
  readonly missing?: MissingPart;
  /** Brings the machine into this row's state, using the empty directory `dir`, and returns the command that must fail. */
  readonly command: (dir: string) => Invocation;
  /** Texts that the output contains. `$DIR` stands for the directory. */
  readonly says: readonly string[];
  /** Exit code; 1 when omitted. */
  readonly code?: number;
};

type Invocation = { readonly argv: readonly string[]; readonly env?: Record<string, string>; readonly cwd?: string };

const floe = (...args: string[]): string[] => [process.execPath, CLI, ...args];
const start = (clone: string): string[] => [process.execPath, join(clone, 'tools', 'run.js'), 'start'];
const LOCAL = ['--backend', 'local', '--log-level', 'silent'];
const SERVER = ['server', '--port', '0'];
const UP = ['up', '--port', '0', ...LOCAL];
const GATEWAY = ['gateway', '--server', 'http://127.0.0.1:1', ...LOCAL];

const userMissing = noOtherUser();
const mountsMissing = noMounts();
const hidingMissing = noHiding();
const limitMissing = process.platform === 'linux' ? noNamespaceLimit() : NOT_LINUX;

let taken: Server;
let port: string;
let root: string;
beforeAll(async () => {
  root = mkdtempSync(join(tmpdir(), 'floe-machine-'));
  chmodSync(root, 0o755);
  taken = createServer().listen(0, '127.0.0.1');
  await once(taken, 'listening');
  port = String((taken.address() as AddressInfo).port);
});
afterAll(() => {
  taken.close();
  rmSync(root, { recursive: true, force: true });
});

/** Returns the invocation of a command by a user whose home directory is read-only. */
function inReadOnlyHome(dir: string, argv: readonly string[], env: Record<string, string> = {}): Invocation {
  const home = readOnly(join(dir, 'home'));
  return { argv: asUser(argv), env: { HOME: home, TMPDIR: ownedByUser(join(dir, 'tmp')), ...env } };
}

/** Returns the invocation of a command that uses the directory `dir/data` on a read-only file system. */
function onReadOnlyDisk(dir: string, argv: (data: string) => readonly string[]): Invocation {
  const data = join(dir, 'data');
  mkdirSync(data);
  return { argv: withMounts(readOnlyMount(data), argv(data)), env: { HOME: dir, FLOE_TOKEN: 'secret' } };
}

/** Returns the invocation of a command that uses the directory `dir/data`, on a disk of `kb` KiB with `freeKb` KiB free. */
function onSmallDisk(
  dir: string,
  { kb, freeKb }: { readonly kb: number; readonly freeKb: number },
  argv: (data: string) => readonly string[],
  env: Record<string, string> = {},
): Invocation {
  const data = join(dir, 'data');
  mkdirSync(data);
  return {
    argv: withMounts(smallDisk(data, kb, freeKb), argv(data)),
    env: { HOME: dir, FLOE_TOKEN: 'secret', ...env },
  };
}

/** Returns the invocation of a command whose floe home has the given file. */
function withFile(dir: string, name: string, content: string, argv: readonly string[], mode = 0o644): Invocation {
  mkdirSync(join(dir, 'home'));
  writeFileSync(join(dir, 'home', name), content);
  chmodSync(join(dir, 'home', name), mode);
  return { argv, env: { HOME: dir, FLOE_HOME: join(dir, 'home') } };
}

const FULL = { kb: 256, freeKb: 0 };

/** Returns the rows with the machine's `state` appended to each title, and with `missing` as the reason why each of them may be skipped. */
function rowsWhen(state: string, missing: MissingPart, rows: readonly Row[]): Row[] {
  return rows.map((row) => ({ ...row, title: `${row.title}, when ${state}`, missing }));
}

const READ_ONLY_HOME: Row[] = rowsWhen('the home directory is read-only', userMissing, [
  {
    title: 'npm start in a fresh clone',
    command: (dir) => inReadOnlyHome(dir, start(freshClone(ownedByUser(join(dir, 'clone'))))),
    says: ['npm cannot write to its cache $DIR/home/.npm', 'set npm_config_cache', 'FLOE_HARNESS_DIR'],
  },
  {
    title: 'floe demo',
    command: (dir) => ({
      ...inReadOnlyHome(dir, floe('demo', '--backend', 'local')),
      cwd: ownedByUser(join(dir, 'here')),
    }),
    says: ['cannot write to $DIR/home/.cache/', 'permission denied', 'set FLOE_HARNESS_DIR or XDG_CACHE_HOME'],
  },
  {
    title: 'floe harness install, with only FLOE_HARNESS_DIR set',
    command: (dir) =>
      inReadOnlyHome(dir, floe('harness', 'install', 'pi'), { FLOE_HARNESS_DIR: ownedByUser(join(dir, 'harnesses')) }),
    says: ['cannot write to $DIR/home/.npm', 'set npm_config_cache'],
  },
  {
    title: 'floe server',
    command: (dir) => inReadOnlyHome(dir, floe(...SERVER)),
    says: ['cannot write to $DIR/home/.floe', 'permission denied', 'set FLOE_HOME'],
  },
  {
    title: 'floe up',
    command: (dir) => inReadOnlyHome(dir, floe(...UP)),
    says: ['cannot write to $DIR/home/.floe', 'set FLOE_HOME'],
  },
  {
    title: 'floe gateway',
    command: (dir) => inReadOnlyHome(dir, floe(...GATEWAY)),
    says: ['cannot write to $DIR/home/.floe/gateway', '--state-dir', '$FLOE_HOME'],
  },
  {
    title: 'floe doctor',
    command: (dir) => inReadOnlyHome(dir, floe('doctor')),
    says: ['fail  floe home', 'cannot write to $DIR/home/.floe', 'set FLOE_HOME'],
  },
]);

const NO_GIT: Row[] = [
  {
    title: 'floe demo, when git is not installed',
    missing: hidingMissing,
    command: (dir) => ({
      argv: withMounts(hide('git', dir), floe('demo', '--backend', 'local')),
      env: { HOME: dir, FLOE_HARNESS_DIR: harnessDir() },
      cwd: root,
    }),
    says: ['the demo needs git, but git is not installed; install it with: '],
  },
  {
    title: 'floe doctor, when git is not installed',
    missing: hidingMissing,
    command: (dir) => ({ argv: withMounts(hide('git', dir), floe('doctor')), env: { HOME: root } }),
    says: ['fail  git', 'is not installed', 'install'],
  },
  {
    title: 'floe demo, when sandboxes may not run git',
    missing: mountsMissing,
    command: () => ({
      argv: withMounts('mount --bind /dev/null /usr/bin/git', floe('demo', '--backend', 'local')),
      env: { HOME: root },
      cwd: root,
    }),
    says: ['the demo needs git, but sandboxes may not run /usr/bin/git; install it with: chmod a+rx'],
  },
  {
    title: 'floe demo, when git does not work',
    missing: mountsMissing,
    command: (dir) => {
      writeFileSync(join(dir, 'git'), '#!/bin/sh\necho broken library >&2; exit 127\n', { mode: 0o755 });
      const argv = withMounts(`mount --bind ${dir}/git /usr/bin/git`, floe('demo', '--backend', 'local'));
      return { argv, env: { HOME: root }, cwd: root };
    },
    says: ['the demo needs git, but /usr/bin/git does not work: broken library; install it with: '],
  },
];

const FULL_DISK: Row[] = rowsWhen('the disk is full', mountsMissing, [
  {
    title: 'npm start in a fresh clone',
    command: (dir) =>
      onSmallDisk(dir, { kb: 150 * 1024, freeKb: 150 * 1024 }, (data) => {
        const clone = freshClone(join(dir, 'clone'));
        return ['sh', '-c', `cp -r ${clone} ${data}/clone; exec "$@"`, 'sh', ...start(join(data, 'clone'))];
      }),
    says: [
      'the disk of $DIR/data/clone has',
      'MB free, and floe needs about 270 MB there for its packages',
      'free space',
    ],
  },
  {
    title: 'floe harness install',
    command: (dir) =>
      onSmallDisk(dir, { kb: 50 * 1024, freeKb: 50 * 1024 }, () => floe('harness', 'install', 'pi'), {
        FLOE_HARNESS_DIR: join(dir, 'data', 'harnesses'),
      }),
    says: ['the disk of $DIR/data/harnesses/pi has 50 MB free, and pi needs about 350 MB', 'FLOE_HARNESS_DIR'],
  },
  {
    title: 'floe server',
    command: (dir) => onSmallDisk(dir, FULL, (data) => floe(...SERVER, '--dir', data)),
    says: ['cannot write to $DIR/data', 'the disk is full', '--dir'],
  },
  {
    title: 'floe up',
    command: (dir) => onSmallDisk(dir, FULL, (data) => floe(...UP, '--dir', data)),
    says: ['cannot write to $DIR/data/server', 'the disk is full', '--dir'],
  },
  {
    title: 'floe gateway',
    command: (dir) => onSmallDisk(dir, FULL, (data) => floe(...GATEWAY, '--state-dir', data)),
    says: ['cannot write to $DIR/data', 'the disk is full', '--state-dir'],
  },
  {
    title: 'floe doctor',
    command: (dir) => onSmallDisk(dir, FULL, () => floe('doctor'), { FLOE_HOME: join(dir, 'data', 'home') }),
    says: ['fail  floe home', '$DIR/data/home', 'the disk is full', 'set FLOE_HOME'],
  },
  {
    title: 'floe doctor, with its temporary directory there',
    command: (dir) => onSmallDisk(dir, FULL, () => floe('doctor'), { TMPDIR: join(dir, 'data') }),
    says: ['fail  runtime bubblewrap', 'ENOSPC', 'free space on that disk', 'TMPDIR'],
  },
]);

const PORTS: Row[] = [
  [['server'], '--port'],
  [[...SERVER], '--node-listen'],
  [[...SERVER], '--admin-listen'],
  [['up', ...LOCAL], '--port'],
  [[...UP], '--proxy-port'],
  [[...UP], '--control-port'],
  [[...GATEWAY], '--proxy-port'],
  [[...GATEWAY], '--control-port'],
  [['sim'], '--port'],
].map(([args, option]) => ({
  title: `floe ${args?.[0]}, when the port of ${option} is in use`,
  command: (dir: string): Invocation => {
    const value = String(option).endsWith('-listen') ? `127.0.0.1:${port}` : port;
    return { argv: floe(...(args as string[]), String(option), value), env: { HOME: dir, FLOE_TOKEN: 'secret' } };
  },
  says: [
    'cannot listen on 127.0.0.1:',
    `another program uses this port; end it, or choose another port with ${option}`,
  ],
}));

const READ_ONLY_DATA: Row[] = rowsWhen('its directory is read-only', mountsMissing, [
  {
    title: 'floe server',
    command: (dir) => onReadOnlyDisk(dir, (data) => floe(...SERVER, '--dir', data)),
    says: ['write to $DIR/data', 'read-only', '--dir'],
  },
  {
    title: 'floe up',
    command: (dir) => onReadOnlyDisk(dir, (data) => floe(...UP, '--dir', data)),
    says: ['write to $DIR/data', 'read-only', '--dir'],
  },
  {
    title: 'floe gateway',
    command: (dir) => onReadOnlyDisk(dir, (data) => floe(...GATEWAY, '--state-dir', data)),
    says: ['write to $DIR/data', 'read-only', '--state-dir'],
  },
  {
    title: 'floe server --blobs',
    command: (dir) => onReadOnlyDisk(dir, (data) => floe(...SERVER, '--blobs', data)),
    says: ['write to $DIR/data', 'read-only', '--blobs'],
  },
  {
    title: 'floe demo',
    command: (dir) =>
      onReadOnlyDisk(dir, (data) => [
        'sh',
        '-c',
        `cd ${data} && exec "$@"`,
        'sh',
        ...floe('demo', '--backend', 'local'),
      ]),
    says: ['write to $DIR/data/.floe', 'read-only', 'run the demo in a directory that you can write to'],
  },
]);

const SECRETS: Row[] = [SERVER, UP, GATEWAY, ['status']].map((args) => ({
  title: `floe ${args[0]}, when the file of the control token is empty`,
  command: (dir) => withFile(dir, 'control-token', '\n', floe(...args)),
  says: ['the file of the control token, $DIR/home/control-token, is empty', 'rm $DIR/home/control-token'],
}));

const OTHERS: Row[] = [
  {
    title: 'floe server, when another user owns the file of the control token',
    missing: userMissing,
    command: (dir) => withFile(dir, 'control-token', 'secret', asUser(floe(...SERVER)), 0o600),
    says: ['cannot open $DIR/home/control-token', 'permission denied', 'FLOE_HOME'],
  },
  {
    title: 'floe gateway, when another user owns the files in the state directory',
    missing: userMissing,
    command: (dir) => {
      const state = ownedByUser(join(dir, 'state'));
      writeFileSync(join(state, 'format'), 'floe-gateway-1', { mode: 0o600 });
      return { argv: asUser(floe(...GATEWAY, '--state-dir', state)), env: { HOME: dir } };
    },
    says: ['cannot open $DIR/state/format', 'permission denied'],
  },
  {
    title: 'floe server, when the certificate cannot be read',
    command: (dir) => ({
      argv: floe(...SERVER, '--tls-cert', join(dir, 'cert.pem'), '--tls-key', join(dir, 'key.pem')),
      env: { HOME: dir },
    }),
    says: ['$DIR/cert.pem cannot be read'],
  },
  {
    title: 'floe sim, when the ledger is a directory',
    command: (dir) => ({ argv: floe('sim', '--port', '0', '--ledger', dir), env: { HOME: dir } }),
    says: ['cannot open $DIR', 'it is a directory'],
  },
  {
    title: 'floe harness list, when standard output is full',
    command: (dir) => ({
      argv: ['sh', '-c', 'exec "$@" >/dev/full', 'sh', ...floe('harness', 'list')],
      env: { HOME: dir },
    }),
    says: ['cannot write', 'the disk is full'],
  },
  {
    title: 'floe gateway, when the port of --control-port does not exist',
    command: (dir) => ({ argv: floe(...GATEWAY, '--control-port', '70000'), env: { HOME: dir } }),
    says: ['schema_violation', 'control.port'],
    code: 2,
  },
];

const NAMESPACES: Row[] = [
  {
    title: 'floe doctor, when no user namespaces are left',
    missing: limitMissing,
    command: (dir) => ({
      argv: withoutUserNamespaces(dir, floe('doctor')),
      env: { HOME: ownedByUser(join(dir, 'home')) },
    }),
    says: ['no namespaces are left for this user', 'user.max_user_namespaces=1', 'sysctl -w user.max_user_namespaces='],
  },
];

let count = 0;

describe('a command fails with one line that names the cause and what to do', () => {
  const rows = [
    ...READ_ONLY_HOME,
    ...NO_GIT,
    ...FULL_DISK,
    ...PORTS,
    ...READ_ONLY_DATA,
    ...SECRETS,
    ...OTHERS,
    ...NAMESPACES,
  ];
  for (const { title, missing = null, command, says, code = 1 } of rows) {
    itIf(
      missing,
      title,
      async () => {
        const dir = join(root, String(count++));
        mkdirSync(dir);
        chmodSync(dir, 0o777);
        const { argv, env, cwd } = command(dir);
        const ended = await run(argv, env, cwd);
        for (const text of says) expect(ended.output).toContain(text.replaceAll('$DIR', dir));
        expect(ended.output).not.toMatch(/^\s+at /m);
        if (!argv.includes('doctor') || ended.output.includes('error ')) {
          expect(ended.output.split('\n').filter((line) => line.startsWith('error '))).toHaveLength(1);
        }
        expect(ended.code).toBe(code);
      },
      120_000,
    );
  }
});
