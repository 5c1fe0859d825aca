// @ts-check
// Starts one of floe's npm commands in any checkout: `node tools/run.js COMMAND [ARGUMENT…]`. Installs the locked packages and compiles
// what has changed, then runs the command. The only program in plain JavaScript, because it runs before TypeScript is installed.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const ROOT = dirname(dirname(fileURLToPath(import.meta.url)));
const MIN_NODE = [20, 19];

/** What ships, compiled from `src/`. */
const PRODUCT = { name: 'floe', project: 'tsconfig.json', output: 'dist', sources: ['src'] };
/** Everything else that runs: tools, benches, verification and examples, with a copy of the product that they import. */
const PROGRAMS = {
  name: 'tools, benches and verification',
  project: 'verify/tsconfig.json',
  output: '.build',
  sources: ['src', 'verify', 'bench', 'tools', 'examples'],
};

/** The compiled module of each command that has one; `build` and `start` need the product alone. @type {Record<string, string>} */
const MODULES = {
  test: 'tools/test.js',
  check: 'tools/check.js',
  generate: 'tools/generate.js',
  verify: 'verify/main.js',
  bench: 'bench/main.js',
};

/** @param {string} message @returns {never} */
function fail(message) {
  console.error(`\n${message}`);
  process.exit(1);
}

/**
 * Runs a program in the repository root with its output shown; ends this process when it fails.
 * @param {string} program @param {string[]} args
 */
function run(program, args) {
  const { error, status } = spawnSync(program, args, { cwd: ROOT, stdio: 'inherit' });
  if (error) fail(`${program} could not be started: ${error.message}`);
  if (status !== 0) process.exit(status ?? 1);
}

function checkNode() {
  const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
  const [minMajor = 0, minMinor = 0] = MIN_NODE;
  if (major > minMajor || (major === minMajor && minor >= minMinor)) return;
  fail(
    `floe needs Node ${MIN_NODE.join('.')} or newer; this is ${process.version}. One way: npm install --global node@24`,
  );
}

/** Runs `npm ci` unless node_modules was installed from this very lock file. */
function ensurePackages() {
  const stamp = join(ROOT, 'node_modules', '.floe-lock');
  const digest = createHash('sha256')
    .update(readFileSync(join(ROOT, 'package-lock.json')))
    .digest('hex');
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === digest) return;
  console.error('▸ installing the locked packages (once, about 10 s)');
  run('npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error']);
  writeFileSync(stamp, digest);
}

/** The latest modification time in a folder, in Unix milliseconds. @param {string} dir @returns {number} */
function latestMtimeMs(dir) {
  const times = readdirSync(dir, { withFileTypes: true }).map((entry) => {
    const path = join(dir, entry.name);
    if (!entry.isDirectory()) return statSync(path).mtimeMs;
    return entry.name === 'node_modules' ? 0 : latestMtimeMs(path);
  });
  return Math.max(statSync(dir).mtimeMs, ...times);
}

/** Compiles a project when any of its sources is newer than the last build. @param {typeof PRODUCT} build */
function ensureBuild({ name, project, output, sources }) {
  const stamp = join(ROOT, output, '.stamp');
  const folders = sources.map((folder) => latestMtimeMs(join(ROOT, folder)));
  const latest = Math.max(statSync(join(ROOT, project)).mtimeMs, ...folders);
  if (existsSync(stamp) && statSync(stamp).mtimeMs > latest) return;
  console.error(`▸ compiling ${name}`);
  // Removes the compiled form of files that were moved or deleted.
  rmSync(join(ROOT, output), { recursive: true, force: true });
  run(process.execPath, [join(ROOT, 'node_modules', 'typescript', 'bin', 'tsc'), '-p', project]);
  mkdirSync(join(ROOT, output), { recursive: true });
  writeFileSync(stamp, '');
}

/** Ends this process when npm, which started it, is gone: npm does not pass signals on. */
function endWithParent() {
  const parent = process.ppid;
  setInterval(() => {
    if (process.ppid !== parent) process.kill(process.pid, 'SIGTERM');
  }, 1_000).unref();
}

const [command = '', ...args] = process.argv.slice(2);
const module = MODULES[command];
if (module === undefined && command !== 'start' && command !== 'build') {
  fail(`unknown command "${command}"; there are: start, build, ${Object.keys(MODULES).join(', ')}`);
}
checkNode();
ensurePackages();
ensureBuild(PRODUCT);
if (command === 'start') {
  endWithParent();
  const main = join(ROOT, 'dist', 'cli', 'main.js');
  process.argv = [process.execPath, main, 'demo', ...args];
  await import(pathToFileURL(main).href);
} else if (module !== undefined) {
  ensureBuild(PROGRAMS);
  const main = join(ROOT, '.build', module);
  process.argv = [process.execPath, main, ...args];
  await import(pathToFileURL(main).href);
}
