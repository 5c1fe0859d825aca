import { dirname, join } from 'node:path/posix';
import type { Problem, SourceFile } from './source.ts';

/**
 * The folders ("rooms") of `src/` that each folder may import, as in the last column of the table in ARCHITECTURE.md. A path allows only
 * that file; `*` allows all folders. Every folder may import itself.
 */
const MAY_IMPORT: Readonly<Record<string, readonly string[]>> = {
  schema: [],
  core: ['schema'],
  tokens: ['schema', 'core'],
  dialects: ['schema', 'core'],
  engines: ['schema', 'core'],
  proxy: ['schema', 'core', 'dialects', 'engines', 'tokens'],
  'sandbox-images': ['schema', 'core'],
  runtimes: ['schema', 'core', 'sandbox-images'],
  harnesses: ['schema', 'core', 'agent/hints.ts'],
  evaluators: ['schema', 'core', 'runtimes/runtime.ts'],
  envs: ['schema', 'core'],
  search: ['schema', 'core', 'datasets/row-file.ts'],
  'code-index': ['schema', 'core', 'search/words.ts', 'runtimes/tools.ts'],
  tools: ['schema', 'core', 'envs', 'search', 'code-index', 'runtimes/tools.ts', 'runtimes/tool-texts.ts'],
  agent: ['schema', 'core', 'envs', 'tools'],
  agents: ['schema', 'core', 'envs', 'tools', 'agent'],
  'agent-host': ['schema', 'core', 'envs', 'tools', 'agent', 'agents', 'runtimes/tools.ts', 'runtimes/runtime.ts'],
  harbor: ['schema', 'core'],
  datasets: ['schema', 'core'],
  recordings: ['schema', 'core', 'datasets/row-file.ts', 'session-sets/read-set.ts'],
  client: ['schema', 'core'],
  generation: ['schema', 'core', 'datasets', 'client'],
  observe: ['schema', 'core'],
  store: ['schema', 'core'],
  rollout: ['schema', 'core', 'store', 'trainers', 'datasets/row-file.ts', 'envs/groups/rows.ts'],
  gateway: [
    'schema',
    'core',
    'tokens',
    'dialects',
    'engines',
    'proxy',
    'runtimes',
    'sandbox-images',
    'harnesses',
    'agent/episode.ts',
    'agent-host',
    'evaluators',
    'client',
    'observe',
  ],
  sim: ['schema', 'core', 'tokens'],
  trainers: ['schema', 'core', 'tokens'],
  'session-sets': ['schema', 'core', 'datasets/row-file.ts', 'client', 'generation', 'trainers'],
  deployment: ['schema', 'core'],
  plugins: ['schema', 'core', 'tokens', 'runtimes', 'harnesses', 'evaluators', 'envs', 'tools', 'agent'],
  testing: [
    'schema',
    'core',
    'envs',
    'sim',
    'client',
    'observe',
    'gateway/node/config.ts',
    'rollout/config.ts',
    'cli/stack.ts',
  ],
  cli: ['*'],
};

/** The top-level folders that each top-level folder may import. `src`, which is published, imports none of the others. */
const MAY_REACH: Readonly<Record<string, readonly string[]>> = {
  src: [],
  // Only types of the schema: the page bundles nothing of the product.
  dashboard: ['src'],
  tools: ['src'],
  examples: [],
  verify: ['src', 'tools', 'bench', 'examples'],
  bench: ['src', 'tools', 'verify'],
  test: ['src', 'dashboard', 'tools', 'verify', 'bench', 'examples'],
};

/** Matches vague names of files and folders, which do not describe their contents. */
const VAGUE_NAME = /(^|\/)(utils?|helpers?|common|misc)(\.ts|\/)/;

export function checkRooms(file: SourceFile): Problem[] {
  const problems: Problem[] = [];
  const [folder = '', room = ''] = file.path.split('/');
  if (VAGUE_NAME.test(file.path)) {
    problems.push({ path: file.path, line: 0, message: 'a file or folder is named for the noun that it holds' });
  }
  if (folder === 'src' && !(room in MAY_IMPORT)) {
    problems.push({ path: file.path, line: 0, message: `the room ${room} is missing from the import table` });
  }
  for (const { specifier, start } of file.imports) {
    if (!specifier.startsWith('.')) continue;
    const target = join(dirname(file.path), specifier);
    if (mayImport(folder, room, target)) continue;
    problems.push({
      path: file.path,
      line: file.lineAt(start),
      message: `${place(folder, room)} may not import ${target}`,
    });
  }
  return problems;
}

function mayImport(folder: string, room: string, target: string): boolean {
  const [otherFolder = '', otherRoom = '', ...rest] = target.split('/');
  if (otherFolder !== folder) return MAY_REACH[folder]?.includes(otherFolder) === true;
  if (folder !== 'src' || otherRoom === room) return true;
  const allowed = MAY_IMPORT[room] ?? [];
  return allowed.includes('*') || allowed.includes(otherRoom) || allowed.includes([otherRoom, ...rest].join('/'));
}

function place(folder: string, room: string): string {
  return folder === 'src' ? room : folder;
}
