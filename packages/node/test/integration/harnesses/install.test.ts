import { execFileSync, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { describeIf } from '../../../../../test/skip.ts';
import { compileCacheDir, type HarnessInstall } from '../../../src/harnesses/harness.ts';
import { commandOf, pythonPath } from '../../../src/harnesses/install/catalog.ts';
import {
  installedBytes,
  installHarness,
  installLocked,
  type LockedHarness,
} from '../../../src/harnesses/install/install.ts';
import { makeReadable } from '../../../src/harnesses/install/permissions.ts';

const NAME = 'fixture';
const ENTRY = `node_modules/${NAME}/bin/program`;
const OWN_MAJOR = process.versions.node.split('.')[0] ?? '';

let dir: string;
let lockDir: string;
let cacheDir: string;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'floe-install-'));
  lockDir = join(dir, 'lock');
  cacheDir = join(dir, 'cache');
  mkdirSync(lockDir);
});

afterEach(() => rmSync(dir, { recursive: true, force: true }));

function log(): void {}

/** The files of an npm package or a wheel, as texts by path. Files below `bin/` are written as executable. */
type Content = Readonly<Record<string, string>>;

function write(root: string, content: Content): void {
  for (const [path, text] of Object.entries(content)) {
    mkdirSync(dirname(join(root, path)), { recursive: true });
    writeFileSync(join(root, path), text);
    if (path.startsWith('bin/')) chmodSync(join(root, path), 0o755);
  }
}

function integrity(file: string): string {
  return `sha512-${createHash('sha512').update(readFileSync(file)).digest('base64')}`;
}

/** Packs npm packages and writes a lock that contains the paths of the archives, so that npm installs them without a registry. */
function lockNpm(packages: Readonly<Record<string, Content>>): void {
  const dependencies: Record<string, string> = {};
  const entries: Record<string, unknown> = {};
  for (const [name, content] of Object.entries(packages)) {
    const archive = join(dir, `${name}.tgz`);
    const source = join(dir, 'pack', name, 'package');
    const scripts = { preinstall: `touch ${join(dir, 'ran')}`, postinstall: `touch ${join(dir, 'ran')}` };
    write(source, { 'package.json': JSON.stringify({ name, version: '1.0.0', scripts }), ...content });
    execFileSync('tar', ['-czf', archive, '-C', dirname(source), 'package']);
    dependencies[name] = `file:${archive}`;
    entries[`node_modules/${name}`] = {
      version: '1.0.0',
      resolved: `file:${archive}`,
      integrity: integrity(archive),
      hasInstallScript: true,
    };
  }
  const root = { name: 'lock', version: '1.0.0', dependencies };
  writeFileSync(join(lockDir, 'package.json'), JSON.stringify(root));
  const lock = { ...root, lockfileVersion: 3, requires: true, packages: { '': root, ...entries } };
  writeFileSync(join(lockDir, 'package-lock.json'), JSON.stringify(lock));
}

function locked(install: Partial<HarnessInstall> = {}): LockedHarness {
  const record: HarnessInstall = {
    version: '1.0.0',
    source: 'npm',
    diskMb: 1,
    nodeVersion: null,
    program: ENTRY,
    warmUp: ['up'],
  };
  return { name: NAME, install: { ...record, ...install }, lockDir };
}

const script = (body: string): string => `#!/bin/sh\n${body}\n`;
const install = (harness: LockedHarness): Promise<string> => installLocked(harness, { cacheDir, log });
/** Lists everything in the cache directory of the tested harness, including hidden entries. */
const present = (): string[] => (existsSync(join(cacheDir, NAME)) ? readdirSync(join(cacheDir, NAME)) : []);

describe('a native program', () => {
  it('is installed from its lock without running a package script', async () => {
    lockNpm({ [NAME]: { 'bin/program': script('[ "$1" = up ]'), 'more.txt': '12345' } });
    const path = await install(locked());
    expect(path).toMatch(new RegExp(`^${cacheDir}/fixture/1\\.0\\.0-[0-9a-f]{12}$`));
    expect(existsSync(join(path, ENTRY))).toBe(true);
    expect(existsSync(join(dir, 'ran'))).toBe(false);
    expect(existsSync(compileCacheDir(path))).toBe(false);
    expect(present()).toHaveLength(1);
    expect(await installedBytes(path)).toBeGreaterThan(5);
  });

  it('is started without the settings and keys of the user', async () => {
    const seen = join(dir, 'seen');
    lockNpm({ [NAME]: { 'bin/program': script(`env > ${seen}; cat >> ${seen}; ls -A "$HOME" >> ${seen}`) } });
    process.env.FLOE_TEST_SECRET = 'of the user';
    try {
      await install(locked({ warmUpEnv: { QUIET: 'yes' } }));
    } finally {
      delete process.env.FLOE_TEST_SECRET;
    }
    const text = readFileSync(seen, 'utf8');
    const names = text
      .trim()
      .split('\n')
      .map((line) => line.split('=')[0]);
    expect(text).toContain('QUIET=yes');
    expect(text).not.toContain('of the user');
    expect(text).not.toContain(`HOME=${process.env.HOME}\n`);
    expect(names.filter((name) => !['PWD', 'OLDPWD', 'SHLVL', '_'].includes(name ?? '')).sort()).toEqual([
      'FLOE_INSTALLING',
      'HOME',
      'PATH',
      'QUIET',
      'TMPDIR',
    ]);
  });

  it.each([
    ['that does not start', { 'bin/program': script('echo no luck >&2; exit 3') }, /does not start: no luck/],
    ['that the packages lack', { 'other.txt': '' }, /not packaged for/],
  ])('%s leaves no files', async (_, content: Content, message) => {
    lockNpm({ [NAME]: content });
    await expect(install(locked())).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringMatching(message),
    });
    expect(present()).toEqual([]);
  });

  it('is refused when its package does not match the lock', async () => {
    lockNpm({ [NAME]: { 'bin/program': script('true') } });
    const lock = readFileSync(join(lockDir, 'package-lock.json'));
    lockNpm({ [NAME]: { 'bin/program': script('true # and more') } });
    writeFileSync(join(lockDir, 'package-lock.json'), lock);
    await expect(install(locked())).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringContaining('EINTEGRITY'),
    });
    expect(present()).toEqual([]);
  });

  it('is installed once by two concurrent calls and not repeated afterwards', async () => {
    const runs = join(dir, 'runs');
    lockNpm({ [NAME]: { 'bin/program': script(`echo run >> ${runs}`) } });
    const [first, second] = await Promise.all([install(locked()), install(locked())]);
    expect(first).toBe(second);
    expect(present()).toHaveLength(1);
    const before = readFileSync(runs, 'utf8');
    expect(await install(locked())).toBe(first);
    expect(readFileSync(runs, 'utf8')).toBe(before);
  });

  it('gets another directory when its lock changes', async () => {
    lockNpm({ [NAME]: { 'bin/program': script('true') } });
    const first = await install(locked());
    lockNpm({ [NAME]: { 'bin/program': script('true # changed') } });
    expect(await install(locked())).not.toBe(first);
    expect(present()).toHaveLength(2);
  });

  it('removes only the unfinished installations of processes that no longer run', async () => {
    const gone = spawnSync('true').pid;
    for (const pid of [gone, process.pid]) mkdirSync(join(cacheDir, NAME, `.installing-${pid}-x`), { recursive: true });
    lockNpm({ [NAME]: { 'bin/program': script('true') } });
    await install(locked());
    expect(present().filter((name) => name.startsWith('.'))).toEqual([`.installing-${process.pid}-x`]);
  });
});

describe('a program for Node', () => {
  const nodePackage = `node-${process.platform}-${process.arch}`;
  const node: Content = { 'bin/node': script(`exec ${process.execPath} "$@"`) };
  const program = `node_modules/${NAME}/cli.js`;
  const record = { nodeVersion: OWN_MAJOR, program };

  it('gets its own Node and a compile cache that is complete once it exists', async () => {
    const runs = join(dir, 'runs');
    const text = `require('fs').appendFileSync('${runs}', process.argv[2] + ' ' + (process.env.NODE_COMPILE_CACHE ?? '-') + '\\n');
      process.exitCode = process.argv[2] === 'fails' ? 1 : 0;`;
    lockNpm({ [NAME]: { 'cli.js': text }, [nodePackage]: node });
    const harness = locked({ ...record, cacheRun: ['fails'] });
    const path = await install(harness);
    expect(commandOf(harness.install, path)).toEqual([join(path, 'node'), join(path, program)]);
    expect(readdirSync(path).filter((name) => name.startsWith('.'))).toEqual([]);
    expect(statSync(compileCacheDir(path)).mode & 0o777).toBe(0o755);
    const lines = readFileSync(runs, 'utf8').trim().split('\n');
    expect(lines.map((line) => line.split(' ')[0])).toEqual(['up', 'up', 'fails']);
    expect(lines[0]).toBe('up -');

    // The compile cache is removed, because it is also missing after a crash between the installation and the filling of the cache.
    rmSync(compileCacheDir(path), { recursive: true });
    expect(await install(harness)).toBe(path);
    expect(existsSync(compileCacheDir(path))).toBe(true);
  });

  it('is refused when its Node has another major version', async () => {
    lockNpm({ [NAME]: { 'cli.js': '' }, [nodePackage]: node });
    await expect(install(locked({ ...record, nodeVersion: '4' }))).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringContaining('needs Node 4'),
    });
    expect(present()).toEqual([]);
  });
});

const python = spawnSync('/usr/bin/python3', [
  '-c',
  'import sys, venv, ensurepip, zipfile; sys.exit(sys.version_info < (3, 10))',
]);
const pythonMissing =
  python.status === 0 ? null : 'python3 3.10 or newer with venv is not installed: apt-get install python3-venv';

// The time limit of this suite is long, because making a virtual environment takes several seconds, and tens of seconds on a busy machine.
describeIf(
  pythonMissing,
  'a program in Python',
  () => {
    const inPython: Partial<HarnessInstall> = { source: 'pip', program: 'venv/bin/fixture' };

    /** Packs a wheel with one Python module and one command, and writes a lock that contains the path of the wheel. */
    function lockPip(module: string, digest?: string): void {
      const wheel = join(dir, 'fixture-1.0.0-py3-none-any.whl');
      const info = 'fixture-1.0.0.dist-info';
      const source = join(dir, 'wheel');
      write(source, {
        'fixture.py': module,
        [`${info}/METADATA`]: 'Metadata-Version: 2.1\nName: fixture\nVersion: 1.0.0\nRequires-Dist: not-in-the-lock\n',
        [`${info}/WHEEL`]: 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n',
        [`${info}/entry_points.txt`]: '[console_scripts]\nfixture = fixture:main\n',
        [`${info}/RECORD`]: `fixture.py,,\n${info}/METADATA,,\n${info}/WHEEL,,\n${info}/entry_points.txt,,\n${info}/RECORD,,\n`,
      });
      rmSync(wheel, { force: true });
      execFileSync('/usr/bin/python3', ['-m', 'zipfile', '-c', wheel, 'fixture.py', `${info}/`], { cwd: source });
      const sha256 = digest ?? createHash('sha256').update(readFileSync(wheel)).digest('hex');
      writeFileSync(join(lockDir, 'requirements.txt'), `fixture @ file://${wheel} \\\n    --hash=sha256:${sha256}\n`);
    }

    it('runs compiled at its final path with the Python of the system, and is rebuilt when that Python was removed', async () => {
      lockPip('import sys\ndef main():\n    print(__file__, __cached__, sys.base_prefix)\n');
      const path = await install(locked(inPython));
      const [command = '', ...args] = commandOf(locked(inPython).install, path);
      const [file = '', cached = '', base] = execFileSync(command, args, { encoding: 'utf8' }).trim().split(' ');
      expect(file.startsWith(join(path, 'venv', 'lib'))).toBe(true);
      expect(existsSync(cached)).toBe(true);
      expect(base).toBe('/usr');
      expect(readdirSync(join(path, 'venv', 'bin'))).not.toContain('pip');

      rmSync(pythonPath(path));
      symlinkSync('/usr/bin/python3.no-more', pythonPath(path));
      expect(await install(locked(inPython))).toBe(path);
      expect(existsSync(pythonPath(path))).toBe(true);
      expect(present()).toHaveLength(1);
    });

    it('is refused when its wheel does not match the lock', async () => {
      lockPip('def main(): pass\n', '0'.repeat(64));
      await expect(install(locked(inPython))).rejects.toMatchObject({
        code: 'setup_failed',
        message: expect.stringMatching(/^pip could not install the packages for fixture: .*HASHES/s),
      });
      expect(present()).toEqual([]);
    });
  },
  180_000,
);

it('every user can read an installation and run its programs, and only the owner can write it', async () => {
  write(dir, { 'tree/sub/file': '', 'tree/sub/program': '', 'tree/open': '' });
  const tree = join(dir, 'tree');
  chmodSync(join(tree, 'sub/file'), 0o600);
  chmodSync(join(tree, 'sub/program'), 0o700);
  chmodSync(join(tree, 'open'), 0o666);
  const outside = join(dir, 'outside');
  writeFileSync(outside, '', { mode: 0o600 });
  symlinkSync(outside, join(tree, 'link'));
  chmodSync(join(tree, 'sub'), 0o700);
  await makeReadable(tree);
  const mode = (path: string): number => statSync(path).mode & 0o777;
  expect(['sub', 'sub/file', 'sub/program', 'open'].map((name) => mode(join(tree, name)))).toEqual([
    0o755, 0o644, 0o755, 0o644,
  ]);
  expect(mode(outside)).toBe(0o600);
});

it('a harness without an installation needs none, and an unknown harness is refused by name', async () => {
  expect(await installHarness('shell', { cacheDir, log })).toBeNull();
  await expect(installHarness('nope', { cacheDir, log })).rejects.toMatchObject({ code: 'unknown_harness' });
  expect(existsSync(cacheDir)).toBe(false);
});
