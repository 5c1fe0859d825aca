import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { dirname, join as joinPosix } from 'node:path/posix';
import type { Problem, SourceFile } from './source.ts';

/** Facts about a package for the lint: its folder below `packages/`, the packages of floe that it depends on, and its entries. */
export type PackageFacts = {
  readonly folder: string;
  readonly dependencies: readonly string[];
  /** Specifiers under which other packages import it, such as `@floe-rl/core/schema`. */
  readonly entries: readonly string[];
};

/** Packages by name, such as `@floe-rl/core`. */
export type Packages = ReadonlyMap<string, PackageFacts>;

/** For each room of a package, the rooms that it may import. A room is a folder of a package. */
type Rooms = Readonly<Record<string, readonly string[]>>;

/**
 * For each package, the rooms that each of its rooms may import. `*` allows all of them. Files next to the rooms may be imported by all rooms,
 * and of these files only `index.ts` imports rooms. A package that is not listed has no such rules.
 */
const ROOMS: Readonly<Record<string, Rooms>> = {
  core: { schema: [], protocol: ['schema'], rows: ['schema'], http: [], channel: [], json: [] },
  capture: { tokens: [], dialects: [], engines: [], proxy: ['tokens', 'dialects', 'engines'] },
  sandbox: {
    api: [],
    images: [],
    processes: [],
    spawn: ['processes'],
    workspace: ['api'],
    box: ['api', 'processes', 'spawn', 'workspace'],
    backends: ['*'],
  },
  search: { search: [], 'code-index': ['search'] },
  agents: {
    environments: [],
    tools: ['environments'],
    loop: ['environments', 'tools'],
    agents: ['environments', 'tools', 'loop'],
    host: ['*'],
  },
  data: {
    datasets: [],
    generation: [],
    trainers: [],
    atif: ['trainers'],
    harbor: [],
    'session-sets': ['atif', 'generation', 'trainers'],
    recordings: ['atif', 'session-sets'],
  },
  server: { store: [], rollout: ['store'] },
  node: { harnesses: [], gateway: ['harnesses'] },
  floe: {
    client: [],
    schema: [],
    trainers: [],
    plugins: [],
    deployment: [],
    up: [],
    testing: ['up'],
    commands: ['deployment', 'up'],
  },
};

/** The top-level folders that each top-level folder may import by path. Packages are imported by name, or as `#package/module` by programs. */
const MAY_REACH: Readonly<Record<string, readonly string[]>> = {
  dashboard: [],
  tools: [],
  examples: [],
  verify: ['tools', 'bench', 'examples'],
  bench: ['tools', 'verify'],
  test: ['dashboard', 'tools', 'verify', 'bench', 'examples', 'packages'],
  // Tests of packages may use all modules that tests share.
  packages: ['dashboard', 'tools', 'verify', 'test'],
};

/** Matches vague names of files and folders, which do not describe their contents. */
const VAGUE_NAME = /(^|\/)(utils?|helpers?|common|misc)(\.ts|\/)/;

/** Reads the manifests of all packages below `packages/` of the repository `root`. */
export function readPackages(root: string): Packages {
  const folders = readdirSync(join(root, 'packages'));
  return new Map(
    folders.map((folder) => {
      const manifest = JSON.parse(readFileSync(join(root, 'packages', folder, 'package.json'), 'utf8')) as {
        name: string;
        dependencies?: object;
        exports: object;
      };
      const entries = Object.keys(manifest.exports).map((entry) => joinPosix(manifest.name, entry));
      const dependencies = Object.keys(manifest.dependencies ?? {}).filter((name) => name.startsWith('@floe-rl/'));
      return [manifest.name, { folder, dependencies, entries }];
    }),
  );
}

/** Returns a problem for each circle of packages that depend on each other. */
export function checkCircles(packages: Packages): Problem[] {
  return circlesOf(packages.keys(), (name) => packages.get(name)?.dependencies ?? []).map((circle) => ({
    path: `packages/${packages.get(circle[0] ?? '')?.folder}/package.json`,
    line: 0,
    message: `${circle.join(' → ')} depend on each other; move what they share to a package below them`,
  }));
}

/** Returns a problem for each circle of rooms that the table allows to import each other. */
export function checkRooms(table: Readonly<Record<string, Rooms>> = ROOMS): Problem[] {
  return Object.entries(table).flatMap(([folder, rooms]) => {
    const names = Object.keys(rooms);
    const allowed = (room: string): readonly string[] =>
      rooms[room]?.includes('*') === true ? names.filter((name) => name !== room) : (rooms[room] ?? []);
    return circlesOf(names, allowed).map((circle) => ({
      path: 'tools/lint/packages.ts',
      line: 0,
      message: `rooms of ${folder} may import each other: ${circle.join(' → ')}; move what they share to one of them`,
    }));
  });
}

/** Returns the circles of a graph. Each is a list of names that leads from a name back to the same name. */
function circlesOf(names: Iterable<string>, next: (name: string) => readonly string[]): string[][] {
  const circles: string[][] = [];
  const done = new Set<string>();
  const visit = (name: string, above: readonly string[]): void => {
    const from = above.indexOf(name);
    if (from >= 0) {
      circles.push([...above.slice(from), name]);
      return;
    }
    if (done.has(name)) return;
    for (const other of next(name)) visit(other, [...above, name]);
    done.add(name);
  };
  for (const name of names) visit(name, []);
  return circles;
}

/** Returns the imports of a file that break a rule. */
export function checkImports(file: SourceFile, packages: Packages): Problem[] {
  const problems: Problem[] = [];
  if (VAGUE_NAME.test(file.path)) {
    problems.push({ path: file.path, line: 0, message: 'a file or folder is named for the noun that it holds' });
  }
  for (const { specifier, start } of file.imports) {
    const message = specifier.startsWith('.')
      ? pathProblem(file.path, joinPosix(dirname(file.path), specifier))
      : nameProblem(file.path, specifier, packages);
    if (message !== null) problems.push({ path: file.path, line: file.lineAt(start), message });
  }
  return problems;
}

type Place = { readonly folder: string; readonly kind: string; readonly room: string };

/**
 * Returns the place of a file within its package; `null` for a file outside all packages. `room` is the first folder below `src` or `test`,
 * empty for a file directly there.
 */
function placeOf(path: string): Place | null {
  const [, folder, kind, rest] = /^packages\/([^/]+)\/([^/]+)\/(.+)$/.exec(path) ?? [];
  if (folder === undefined || kind === undefined || rest === undefined) return null;
  return { folder, kind, room: rest.includes('/') ? rest.slice(0, rest.indexOf('/')) : '' };
}

/** Returns the problem of an import of the file `target` by its path; `null` when there is none. */
function pathProblem(path: string, target: string): string | null {
  const [from, to] = [placeOf(path), placeOf(target)];
  if (from?.kind !== 'src') {
    const [top = '', other = ''] = [path, target].map((place) => place.slice(0, place.indexOf('/')));
    return top === other || MAY_REACH[top]?.includes(other) === true ? null : `${top} may not import ${target}`;
  }
  if (from.folder !== to?.folder || to.kind !== 'src') {
    return `${target} is outside the package ${from.folder}; import another package by its name`;
  }
  const rooms = ROOMS[from.folder];
  if (rooms === undefined || from.room === to.room || to.room === '' || path.endsWith(`/${from.folder}/src/index.ts`)) {
    return null;
  }
  const allowed = from.room === '' ? [] : rooms[from.room];
  if (allowed === undefined) return `the room ${from.room} of ${from.folder} is missing from tools/lint/packages.ts`;
  if (allowed.includes('*') || allowed.includes(to.room)) return null;
  return `${from.folder}/${from.room} may not import ${to.folder}/${to.room}`;
}

/** Returns the problem of an import by the name of a package; `null` when there is none. */
function nameProblem(path: string, specifier: string, packages: Packages): string | null {
  const [, name] = /^(@floe-rl\/[^/]+|floe)(?:\/|$)/.exec(specifier) ?? [];
  const from = placeOf(path);
  if (specifier.startsWith('#')) {
    return from === null ? null : `${specifier} is for programs of the repository; import the package by its name`;
  }
  if (name === undefined) return null;
  const target = packages.get(name);
  if (target === undefined) return `there is no package ${name}`;
  if (!target.entries.includes(specifier)) {
    return `${specifier} is a deep path; import from ${target.entries.slice(0, -1).join(' or ')}, and export there what is missing`;
  }
  if (from?.kind !== 'src' || from.folder === target.folder) return null;
  const own = [...packages.values()].find(({ folder }) => folder === from.folder);
  if (own?.dependencies.includes(name) === true) return null;
  return `${name} is not among the dependencies in packages/${from.folder}/package.json`;
}
