import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import type { HarnessInstall } from '../../src/harnesses/harness.ts';
import { commandOf, harnessInstalls, programPath } from '../../src/harnesses/install/catalog.ts';
import { harnessRegistry } from '../../src/harnesses/registry.ts';

const LOCKS = 'harness-locks';
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

test('every lock folder belongs to a record and the other way round', () => {
  expect(
    readdirSync(LOCKS, { withFileTypes: true }).flatMap((entry) => (entry.isDirectory() ? [entry.name] : [])),
  ).toEqual(installs.map(([name]) => name).sort());
});

test('an adapter refers to the record that is installed', () => {
  for (const [name, adapter] of harnessRegistry()) expect(adapter.install).toBe(harnessInstalls().get(name) ?? null);
});

describe.each(withNpm)('the lock of %s', (name, install) => {
  const packages = packagesOf(name);

  test('has a version and a digest for every package, and names no host', () => {
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

  test('pins the version of the record exactly, and agrees with its package.json', () => {
    const root = packages.get('');
    const manifest = JSON.parse(readFileSync(join(LOCKS, name, 'package.json'), 'utf8'));
    expect(root?.dependencies).toEqual(manifest.dependencies);
    expect(root?.optionalDependencies).toEqual(manifest.optionalDependencies);
    const [[program, version] = []] = Object.entries(root?.dependencies ?? {});
    expect(version).toBe(install.version);
    expect(packages.get(`node_modules/${program}`)?.version).toBe(install.version);
    for (const range of Object.values(root?.optionalDependencies ?? {})) expect(range).toMatch(/^\d+\.\d+\.\d+$/);
  });

  test('brings Node for the platforms that floe runs on, when it needs one', () => {
    const nodes = [...packages].filter(([path]) => /^node_modules\/node-(bin-)?(linux|darwin)-/.test(path));
    const wanted = install.nodeVersion === null ? [] : ['darwin-arm64', 'darwin-x64', 'linux-arm64', 'linux-x64'];
    expect(nodes.map(([path]) => path.replace(/^.*node-(bin-)?/, '')).sort()).toEqual(wanted);
    for (const [, entry] of nodes) expect(entry.version?.split('.')[0]).toBe(install.nodeVersion);
  });
});

/** Platforms that the vendor's packages are locked for; opencode's others are not in the registry at its version. */
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
  test('is one that these tests know', () => {
    const native = withNpm.filter(([, install]) => install.nodeVersion === null);
    expect(native.map(([name]) => name).sort()).toEqual(Object.keys(NATIVE));
  });

  test.each(Object.entries(NATIVE))('%s lies in a locked package of its platform', (name, platforms) => {
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

describe.each(withPip)('the requirements of %s', (name, install) => {
  const text = readFileSync(join(LOCKS, name, 'requirements.txt'), 'utf8');
  const requirements = text.split(/(?<!\\)\n/).filter((requirement) => requirement.trim() !== '');

  test('pin every package to one version with digests, and name no host', () => {
    expect(requirements.length).toBeGreaterThan(10);
    for (const requirement of requirements) {
      expect(requirement).toMatch(/^[a-z0-9.-]+==[\w.]+( ; [^\\]+)? \\\n( {4}--hash=sha256:[0-9a-f]{64}( \\\n)?)+$/);
    }
    expect(text).not.toMatch(/:\/\/|--(extra-)?index-url|--find-links/);
  });

  test('pin the version of the record', () => {
    const program = name.replaceAll('_', '-');
    expect(requirements.filter((requirement) => requirement.startsWith(`${program}==`))).toEqual([
      expect.stringMatching(`^${program}==${install.version} `),
    ]);
  });
});

describe('the command of an installation', () => {
  const record: HarnessInstall = { version: '1.0.0', source: 'npm', nodeVersion: null, program: 'bin/p', warmUp: [] };

  test('starts with the interpreter that the installation brings', () => {
    expect(commandOf(record, '/i')).toEqual(['/i/bin/p']);
    expect(commandOf({ ...record, nodeVersion: '22' }, '/i')).toEqual(['/i/node', '/i/bin/p']);
    expect(commandOf({ ...record, source: 'pip' }, '/i')).toEqual(['/i/venv/bin/python', '/i/bin/p']);
  });

  test('is made for this machine', () => {
    const program = (platform: string, arch: string): string => `bin/${platform}-${arch}`;
    expect(programPath({ ...record, program }, '/i')).toBe(`/i/bin/${process.platform}-${process.arch}`);
  });
});

test('the locks are shipped with the package', () => {
  expect(JSON.parse(readFileSync('package.json', 'utf8')).files).toContain(LOCKS);
  expect(existsSync(LOCKS)).toBe(true);
});
