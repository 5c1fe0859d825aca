import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { repositoryRoot } from './repository.ts';

const ROOT = repositoryRoot();
/** Folders of `dist/` that the client needs. The import rules of rooms ensure that they need nothing else of floe. */
const CLIENT_ROOMS = ['client', 'core', 'schema'];
/** Packages that these folders import. */
const CLIENT_DEPENDENCIES = ['undici', 'zod'];
/** Date of all files in the wheel, in Unix seconds, so that the same sources always make the same bytes. npm uses this date, too. */
const FILE_DATE = '499162500';

type Manifest = {
  readonly version: string;
  readonly license: string;
  readonly engines: object;
  readonly dependencies: Readonly<Record<string, string>>;
  readonly [field: string]: unknown;
};

/** The files that a release consists of. All are in one folder. */
export type Packages = {
  readonly version: string;
  /** Path of the npm package `floe`. */
  readonly server: string;
  /** Path of the npm package `floe-client`. */
  readonly client: string;
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
  const manifest = readManifest();
  checkVersions(manifest.version);
  const scratch = mkdtempSync(join(tmpdir(), 'floe-packages-'));
  try {
    const server = packed(ROOT, folder);
    const client = packed(clientFolder(scratch, manifest), folder);
    const wheel = madeWheel(scratch, folder);
    const sbom = join(folder, `floe-${manifest.version}.cdx.json`);
    writeFileSync(sbom, listedPackages(join(scratch, 'product')));
    const files = readdirSync(folder).sort();
    writeFileSync(join(folder, 'SHA256SUMS'), files.map((name) => `${digest(join(folder, name))}  ${name}\n`).join(''));
    return { version: manifest.version, server, client, wheel, sbom };
  } finally {
    rmSync(scratch, { recursive: true });
  }
}

function readManifest(): Manifest {
  return JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as Manifest;
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
}

/** Makes the folder of the package `floe-client` from compiled files of `dist/`. */
function clientFolder(scratch: string, { version, license, engines, dependencies, ...others }: Manifest): string {
  const folder = join(scratch, 'floe-client');
  for (const room of CLIENT_ROOMS) {
    const from = join(ROOT, 'dist', room);
    cpSync(from, join(folder, 'dist', room), { recursive: true, filter: (path) => !path.endsWith('.map') });
  }
  cpSync(join(ROOT, 'LICENSE'), join(folder, 'LICENSE'));
  cpSync(join(ROOT, 'src', 'client', 'README.md'), join(folder, 'README.md'));
  const manifest = {
    name: 'floe-client',
    version,
    description: 'Client of floe, rollouts as a service for reinforcement learning of LLM agents',
    license,
    ...(others.repository === undefined ? {} : { repository: others.repository }),
    type: 'module',
    engines,
    exports: {
      '.': './dist/client/index.js',
      './schema': './dist/schema/index.js',
      './package.json': './package.json',
    },
    dependencies: Object.fromEntries(CLIENT_DEPENDENCIES.map((name) => [name, dependencies[name]])),
  };
  writeFileSync(join(folder, 'package.json'), `${JSON.stringify(manifest, null, 2)}\n`);
  return folder;
}

/**
 * Returns the list of the packages that `floe` needs, and of those that are bundled in the dashboard. It is made in a folder without
 * development packages, because `npm sbom --omit dev` leaves out packages that both kinds of packages depend on.
 */
function listedPackages(folder: string): string {
  for (const path of ['package.json', join('dashboard', 'package.json')]) {
    const { devDependencies: _, ...manifest } = JSON.parse(readFileSync(join(ROOT, path), 'utf8'));
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    writeFileSync(join(folder, path), JSON.stringify(manifest));
  }
  cpSync(join(ROOT, 'package-lock.json'), join(folder, 'package-lock.json'));
  // Removes the development packages from the lock file.
  run('npm', ['install', '--package-lock-only', '--ignore-scripts', '--offline', '--no-audit', '--no-fund'], folder);
  return run('npm', ['sbom', '--package-lock-only', '--sbom-format', 'cyclonedx'], folder);
}

/** Packs an npm package. Returns the path of its tarball. */
function packed(source: string, folder: string): string {
  const args = ['pack', '--json', '--ignore-scripts', '--workspaces=false', '--pack-destination', folder];
  const report: unknown = JSON.parse(run('npm', args, source));
  // `npm pack --json` prints a list with npm 11 and older, and an object by package name with npm 12.
  const [entry] = Object.values(report as object) as { readonly filename: string }[];
  if (entry === undefined) throw new Error(`npm packed nothing of ${source}`);
  return join(folder, entry.filename);
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
