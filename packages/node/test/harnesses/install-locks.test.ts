import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { HarnessInstall } from '../../src/harnesses/harness.ts';
import { commandOf, harnessInstalls, programPath } from '../../src/harnesses/install/catalog.ts';
import { MATH_VERIFY } from '../../src/harnesses/install/math-verify.ts';
import { harnessRegistry } from '../../src/harnesses/registry.ts';

const LOCKS = join(import.meta.dirname, '..', '..', 'harness-locks');
const installs = [...harnessInstalls()];
const withNpm = installs.filter(([, install]) => install.source === 'npm');
const withPip = installs.filter(([, install]) => install.source === 'pip');

type LockedPackage = {
  readonly name?: string;
  readonly version?: string;
  readonly resolved?: string;
  readonly integrity?: string;
  readonly link?: boolean;
  readonly os?: readonly string[];
  readonly cpu?: readonly string[];
  readonly dependencies?: Readonly<Record<string, string>>;
  readonly optionalDependencies?: Readonly<Record<string, string>>;
};

function packagesOf(name: string): Map<string, LockedPackage> {
  const lock = JSON.parse(readFileSync(join(LOCKS, name, 'package-lock.json'), 'utf8'));
  return new Map(Object.entries<LockedPackage>(lock.packages));
}

it('every lock folder belongs to a catalog entry, and every entry has a lock folder', () => {
  expect(
    readdirSync(LOCKS, { withFileTypes: true }).flatMap((entry) => (entry.isDirectory() ? [entry.name] : [])),
  ).toEqual(installs.map(([name]) => name).sort());
});

it('every adapter refers to the catalog entry with its name', () => {
  for (const [name, adapter] of harnessRegistry()) expect(adapter.install).toBe(harnessInstalls().get(name) ?? null);
});

describe.each(withNpm)('the lock of %s', (name, install) => {
  const packages = packagesOf(name);

  it('has a version and a digest for every package and names no host', () => {
    expect(packages.size).toBeGreaterThan(2);
    for (const [path, entry] of packages) {
      if (path === '') continue;
      expect(entry.version, path).toMatch(/^\d+\.\d+\.\d+/);
      expect(entry.integrity, path).toMatch(/^sha512-[A-Za-z0-9+/]{86}==$/);
      expect(entry.resolved, path).toBeUndefined();
      expect(entry.link, path).toBeUndefined();
    }
    expect(readFileSync(join(LOCKS, name, 'package-lock.json'), 'utf8')).not.toMatch(/"resolved"/);
  });

  it('pins exactly the version of the catalog and agrees with its package.json', () => {
    const root = packages.get('');
    const manifest = JSON.parse(readFileSync(join(LOCKS, name, 'package.json'), 'utf8'));
    expect(root?.dependencies).toEqual(manifest.dependencies);
    expect(root?.optionalDependencies).toEqual(manifest.optionalDependencies);
    const [[program, version] = []] = Object.entries(root?.dependencies ?? {});
    expect(version).toBe(install.version);
    expect(packages.get(`node_modules/${program}`)?.version).toBe(install.version);
    for (const range of Object.values(root?.optionalDependencies ?? {})) expect(range).toMatch(/^\d+\.\d+\.\d+$/);
  });

  it('contains Node for every platform of floe when the harness needs Node', () => {
    const nodes = [...packages].filter(([path]) => /^node_modules\/node-(bin-)?(linux|darwin)-/.test(path));
    const wanted = install.nodeVersion === null ? [] : ['darwin-arm64', 'darwin-x64', 'linux-arm64', 'linux-x64'];
    expect(nodes.map(([path]) => path.replace(/^.*node-(bin-)?/, '')).sort()).toEqual(wanted);
    for (const [, entry] of nodes) expect(entry.version?.split('.')[0]).toBe(install.nodeVersion);
  });
});

/**
 * Platforms for which the native packages of each harness are locked. For the locked version of opencode, the npm registry has a package
 * for only one platform.
 */
const NATIVE: Record<string, [NodeJS.Platform, string][]> = {
  claude_code: [
    ['linux', 'x64'],
    ['linux', 'arm64'],
    ['darwin', 'x64'],
    ['darwin', 'arm64'],
  ],
  codex: [
    ['linux', 'x64'],
    ['linux', 'arm64'],
    ['darwin', 'x64'],
    ['darwin', 'arm64'],
  ],
  opencode: [['linux', 'x64']],
};

describe('a native program', () => {
  it('is listed in this test', () => {
    const native = withNpm.filter(([, install]) => install.nodeVersion === null);
    expect(native.map(([name]) => name).sort()).toEqual(Object.keys(NATIVE));
  });

  it.each(Object.entries(NATIVE))('%s is in a locked package for its platform', (name, platforms) => {
    const { program } = harnessInstalls().get(name) as HarnessInstall;
    if (typeof program === 'string') throw new Error('a native program differs between platforms');
    const packages = packagesOf(name);
    for (const [platform, arch] of platforms) {
      const folder = /^node_modules\/(@[^/]+\/)?[^/]+/.exec(program(platform, arch))?.[0] ?? '';
      const entry = packages.get(folder);
      expect(entry?.os, folder).toEqual([platform]);
      expect(entry?.cpu, folder).toEqual([arch]);
      expect(entry?.version, folder).toMatch(new RegExp(`^${harnessInstalls().get(name)?.version}(-|$)`));
    }
    expect(() => program('sunos', 'x64')).toThrow(expect.objectContaining({ code: 'setup_failed' }));
  });
});

const requirementsOf = [
  ...withPip.map(([name, install]) => ({ name, install, folder: join(LOCKS, name), least: 10 })),
  { name: MATH_VERIFY.name, install: MATH_VERIFY.install, folder: MATH_VERIFY.lockDir, least: 4 },
];

describe.each(requirementsOf)('the requirements of $name', ({ name, install, folder, least }) => {
  const text = readFileSync(join(folder, 'requirements.txt'), 'utf8');
  const requirements = text.split(/(?<!\\)\n/).filter((requirement) => requirement.trim() !== '');

  it('pin every package to one version with digests and name no host', () => {
    expect(requirements.length).toBeGreaterThan(least);
    for (const requirement of requirements) {
      expect(requirement).toMatch(/^[a-z0-9.-]+==[\w.]+( ; [^\\]+)? \\\n( {4}--hash=sha256:[0-9a-f]{64}( \\\n)?)+$/);
    }
    expect(text).not.toMatch(/:\/\/|--(extra-)?index-url|--find-links/);
  });

  it('pin the version of the catalog', () => {
    const program = name.replaceAll('_', '-');
    expect(requirements.filter((requirement) => requirement.startsWith(`${program}==`))).toEqual([
      expect.stringMatching(`^${program}==${install.version} `),
    ]);
  });
});

describe('the command of an installation', () => {
  const record: HarnessInstall = {
    version: '1.0.0',
    source: 'npm',
    diskMb: 1,
    nodeVersion: null,
    program: 'bin/p',
    warmUp: [],
  };

  it('starts with the interpreter of the installation', () => {
    expect(commandOf(record, '/i')).toEqual(['/i/bin/p']);
    expect(commandOf({ ...record, nodeVersion: '22' }, '/i')).toEqual(['/i/node', '/i/bin/p']);
    expect(commandOf({ ...record, source: 'pip' }, '/i')).toEqual(['/i/venv/bin/python', '/i/bin/p']);
  });

  it('exists for the platform of this machine', () => {
    const program = (platform: string, arch: string): string => `bin/${platform}-${arch}`;
    expect(programPath({ ...record, program }, '/i')).toBe(`/i/bin/${process.platform}-${process.arch}`);
  });
});

it('the package includes the locks', () => {
  const { files } = JSON.parse(readFileSync(join(dirname(LOCKS), 'package.json'), 'utf8'));
  for (const locks of [basename(LOCKS), basename(dirname(MATH_VERIFY.lockDir))]) {
    expect(files).toContain(locks);
    expect(existsSync(join(dirname(LOCKS), locks))).toBe(true);
  }
});
