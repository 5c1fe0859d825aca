import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { repositoryRoot } from './repository.ts';

const ROOT = repositoryRoot();
/** Packages whose tarball contains the other packages of floe that they need. Each can be installed from one file. */
const BUNDLING: readonly string[] = ['floe', '@floe-rl/client'];
/** Export condition for the sources, which are not packed. */
const SOURCE_CONDITION = 'floe-source';
/** Names of files and folders that are never packed. */
const LEFT_OUT = /^(\.stamp|node_modules|__pycache__|.*\.egg-info|.*\.map|.*\.tsbuildinfo)$/;
/** Date of all files in the wheel, in Unix seconds, so that the same sources always make the same bytes. npm uses this date, too. */
const FILE_DATE = '499162500';

type Versions = Readonly<Record<string, string>>;
type Manifest = {
  readonly name: string;
  readonly version: string;
  readonly files: readonly string[];
  readonly exports: Readonly<Record<string, string | Readonly<Record<string, string>>>>;
  readonly dependencies?: Versions;
  readonly optionalDependencies?: Versions;
  readonly devDependencies?: Versions;
};

/** A package of the workspace: its folder and its manifest. */
type Workspace = { readonly folder: string; readonly manifest: Manifest };

/** The files that a release consists of. All are in one folder. */
export type Packages = {
  readonly version: string;
  /** Paths of the npm packages by name, such as `@floe-rl/core`. */
  readonly tarballs: ReadonlyMap<string, string>;
  /** Path of the Python package `floe-rl`. */
  readonly wheel: string;
  /** Path of the list of all packages that `floe` installs, in CycloneDX's format. */
  readonly sbom: string;
};

/**
 * Makes the packages of this checkout, which must be built, in the empty folder `folder`, with a file `SHA256SUMS` of their digests. Throws an
 * Error when versions differ or a tool fails.
 */
export function makePackages(folder: string): Packages {
  const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as { version: string };
  checkVersions(version);
  const tarballs = makeTarballs(folder);
  return inScratch((scratch) => {
    const wheel = madeWheel(scratch, folder);
    const sbom = join(folder, `floe-${version}.cdx.json`);
    writeFileSync(sbom, listedPackages(join(scratch, 'product')));
    const files = readdirSync(folder).sort();
    writeFileSync(join(folder, 'SHA256SUMS'), files.map((name) => `${digest(join(folder, name))}  ${name}\n`).join(''));
    return { version, tarballs, wheel, sbom };
  });
}

/**
 * Makes the npm packages `names` in `folder`; by default all of them. Returns their paths by name. Throws an Error when a file of a package is
 * missing or npm fails.
 */
export function makeTarballs(folder: string, names?: readonly string[]): ReadonlyMap<string, string> {
  const workspaces = readWorkspaces();
  return inScratch((scratch) => {
    const sources = (names ?? [...workspaces.keys()]).map((name) => staged(workspaces, name, scratch));
    const args = ['pack', '--json', '--ignore-scripts', '--pack-destination', folder, ...sources];
    const report: unknown = JSON.parse(run('npm', args, scratch));
    // `npm pack --json` prints a list with npm 11 and older, and an object by package name with npm 12.
    const entries = Object.values(report as object) as { readonly name: string; readonly filename: string }[];
    return new Map(entries.map(({ name, filename }) => [name, join(folder, basename(filename))]));
  });
}

/** Returns the names of the packages of floe that must be installed for the packages `names` to work, with these packages first. */
export function withNeededPackages(names: readonly string[]): readonly string[] {
  const workspaces = readWorkspaces();
  const needed = new Set(names);
  for (const name of needed) {
    if (BUNDLING.includes(name)) continue;
    for (const dependency of ownDependencies(workspaces, name)) needed.add(dependency);
  }
  return [...needed];
}

/** Returns the packages of `packages/` by name. */
function readWorkspaces(): ReadonlyMap<string, Workspace> {
  const folders = readdirSync(join(ROOT, 'packages')).map((name) => join(ROOT, 'packages', name));
  return new Map(
    folders
      .filter((folder) => existsSync(join(folder, 'package.json')))
      .map((folder) => {
        const manifest = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as Manifest;
        return [manifest.name, { folder, manifest }];
      }),
  );
}

function workspaceOf(workspaces: ReadonlyMap<string, Workspace>, name: string): Workspace {
  const workspace = workspaces.get(name);
  if (workspace === undefined) throw new Error(`no folder of packages/ has the package ${name}`);
  return workspace;
}

/** Returns the packages of floe that a package imports. */
function ownDependencies(workspaces: ReadonlyMap<string, Workspace>, name: string): readonly string[] {
  const { dependencies = {} } = workspaceOf(workspaces, name).manifest;
  return Object.keys(dependencies).filter((dependency) => workspaces.has(dependency));
}

/** Returns the packages of floe that a package needs directly or indirectly. */
function bundledPackages(workspaces: ReadonlyMap<string, Workspace>, name: string): readonly string[] {
  const found = new Set(ownDependencies(workspaces, name));
  for (const each of found) for (const next of ownDependencies(workspaces, each)) found.add(next);
  return [...found].sort();
}

/** Makes the folder that a package is packed from, and returns its path. */
function staged(workspaces: ReadonlyMap<string, Workspace>, name: string, scratch: string): string {
  const folder = join(scratch, name.replace('/', '-'));
  const { manifest } = workspaceOf(workspaces, name);
  const bundled = BUNDLING.includes(name) ? bundledPackages(workspaces, name) : [];
  copyPackage(workspaceOf(workspaces, name), folder);
  for (const each of bundled) {
    const workspace = workspaceOf(workspaces, each);
    const target = join(folder, 'node_modules', each);
    copyPackage(workspace, target);
    writeManifest(target, shippedManifest(workspace.manifest));
  }
  const manifests = bundled.map((each) => workspaceOf(workspaces, each).manifest);
  writeManifest(folder, { ...shippedManifest(manifest), ...mergedDependencies(manifest, manifests) });
  return folder;
}

/**
 * Copies the files and folders that the manifest's `files` names. If the folder of the package lacks a file, such as the license, the file is
 * copied from the root of the repository.
 */
function copyPackage({ folder, manifest }: Workspace, target: string): void {
  for (const file of manifest.files.filter((path) => !path.startsWith('!'))) {
    const source = [folder, ROOT].map((parent) => join(parent, file)).find((path) => existsSync(path));
    if (source === undefined) throw new Error(`${manifest.name} has no ${file}`);
    cpSync(source, join(target, file), { recursive: true, filter: (path) => !LEFT_OUT.test(basename(path)) });
  }
}

/** Returns a manifest without the fields that only this repository needs. */
function shippedManifest({ devDependencies: _, exports, ...manifest }: Manifest): Omit<Manifest, 'devDependencies'> {
  const { repository } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as { repository?: unknown };
  const shipped = Object.entries(exports).map(([path, target]) => {
    if (typeof target === 'string') return [path, target];
    return [path, Object.fromEntries(Object.entries(target).filter(([condition]) => condition !== SOURCE_CONDITION))];
  });
  return { ...manifest, ...(repository === undefined ? {} : { repository }), exports: Object.fromEntries(shipped) };
}

/**
 * Returns the dependencies of a package that contains the packages `bundled`. npm installs the dependencies of bundled packages only when this
 * package names them too.
 */
function mergedDependencies(manifest: Manifest, bundled: readonly Manifest[]): object {
  if (bundled.length === 0) return {};
  const all = [manifest, ...bundled];
  const dependencies = merged(all.map((each) => each.dependencies ?? {}));
  const optional = Object.entries(merged(all.map((each) => each.optionalDependencies ?? {})));
  const optionalDependencies = Object.fromEntries(optional.filter(([name]) => dependencies[name] === undefined));
  return {
    dependencies,
    ...(Object.keys(optionalDependencies).length === 0 ? {} : { optionalDependencies }),
    bundleDependencies: bundled.map(({ name }) => name),
  };
}

/** Joins lists of dependencies. Throws an Error when two of them require different versions of a package. */
function merged(lists: readonly Versions[]): Versions {
  const result = new Map<string, string>();
  for (const [name, version] of lists.flatMap((list) => Object.entries(list))) {
    const known = result.get(name) ?? version;
    if (known !== version) throw new Error(`the packages require ${name} ${known} and ${version}; use one version`);
    result.set(name, version);
  }
  return Object.fromEntries([...result].sort(([a], [b]) => (a < b ? -1 : 1)));
}

function writeManifest(folder: string, manifest: object): void {
  writeFileSync(join(folder, 'package.json'), `${JSON.stringify(manifest, null, 2)}\n`);
}

/** Throws an Error when a file states another version than package.json. */
function checkVersions(version: string): void {
  const places = [
    ['python/pyproject.toml', /^version = "(.*)"$/m],
    ['deploy/helm/floe/Chart.yaml', /^version: (.*)$/m],
    ['deploy/helm/floe/Chart.yaml', /^appVersion: "(.*)"$/m],
  ] as const;
  for (const [file, pattern] of places) {
    const found = pattern.exec(readFileSync(join(ROOT, file), 'utf8'))?.[1];
    if (found !== version) throw new Error(`package.json has version ${version}, but ${file} has ${found}`);
  }
  const workspaces = readWorkspaces();
  for (const [name, { manifest }] of workspaces) {
    const stated = { [name]: manifest.version, ...manifest.dependencies, ...manifest.devDependencies };
    for (const [each, found] of Object.entries(stated)) {
      if (!workspaces.has(each) || found === version) continue;
      throw new Error(`package.json has version ${version}, but ${name} has ${each} ${found}`);
    }
  }
}

/**
 * Returns the list of the packages that `floe` needs, and of the packages that are bundled in the dashboard. It is made in a folder without
 * development packages, because `npm sbom --omit dev` leaves out packages that both kinds of packages depend on.
 */
function listedPackages(folder: string): string {
  const folders = [...readWorkspaces().values()].map((workspace) => join('packages', basename(workspace.folder)));
  for (const path of ['.', 'dashboard', ...folders].map((each) => join(each, 'package.json'))) {
    const { devDependencies: _, ...manifest } = JSON.parse(readFileSync(join(ROOT, path), 'utf8'));
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    writeFileSync(join(folder, path), JSON.stringify(manifest));
  }
  cpSync(join(ROOT, 'package-lock.json'), join(folder, 'package-lock.json'));
  // Removes the development packages from the lock file.
  run('npm', ['install', '--package-lock-only', '--ignore-scripts', '--offline', '--no-audit', '--no-fund'], folder);
  return run('npm', ['sbom', '--package-lock-only', '--sbom-format', 'cyclonedx'], folder);
}

/** Makes the wheel from a copy of the sources, because setuptools writes into their folder. Returns the wheel's path. */
function madeWheel(scratch: string, folder: string): string {
  const source = join(scratch, 'python');
  cpSync(join(ROOT, 'python'), source, {
    recursive: true,
    filter: (path) => !/(__pycache__|\.egg-info|\/build)$/.test(path),
  });
  const wheels = join(scratch, 'wheels');
  mkdirSync(wheels);
  run('python3', ['-m', 'pip', 'wheel', '--quiet', '--no-deps', '--wheel-dir', wheels, source], scratch);
  const [name] = readdirSync(wheels);
  if (name === undefined) throw new Error('pip made no wheel');
  cpSync(join(wheels, name), join(folder, name));
  return join(folder, name);
}

/** Calls `use` with a new folder, which is removed afterwards. */
function inScratch<T>(use: (scratch: string) => T): T {
  const scratch = mkdtempSync(join(tmpdir(), 'floe-packages-'));
  try {
    return use(scratch);
  } finally {
    rmSync(scratch, { recursive: true });
  }
}

/** Runs a program and returns its standard output. Throws an Error with its messages when it fails. */
function run(program: string, args: readonly string[], cwd: string): string {
  const env = { ...process.env, SOURCE_DATE_EPOCH: FILE_DATE };
  const { status, stdout, stderr, error } = spawnSync(program, args, {
    cwd,
    env,
    encoding: 'utf8',
    maxBuffer: 64 * 1024 * 1024,
  });
  if (status !== 0) throw new Error(`${program} ${args[0]} failed: ${error?.message ?? stderr.trim()}`);
  return stdout;
}

function digest(path: string): string {
  return createHash('sha256').update(readFileSync(path)).digest('hex');
}

/** Returns the size of a file in bytes. */
export function sizeOf(path: string): number {
  return statSync(path).size;
}
