// @ts-check
// Starts one of floe's npm commands in any checkout: `node tools/run.js COMMAND [ARGUMENT…]`. Installs the locked packages and compiles
// what has changed, then runs the command. In plain JavaScript, because it runs before TypeScript is installed.
import { spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import {
  accessSync,
  existsSync,
  constants as FILES,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statfsSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { constants, homedir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { endGroup, lockCheckout } from './install-lock.js';

const ROOT = dirname(dirname(fileURLToPath(import.meta.url)));
const MIN_NODE = [20, 19];

/** A program of this build, with its arguments. @typedef {readonly string[]} Step */
/**
 * Something that is compiled. `outputs` are removed first; the first one contains the stamp of the last build. `sources` are files and folders.
 * @typedef {{ name: string, outputs: readonly string[], sources: readonly string[], steps: readonly Step[] }} Build
 */

const TSC = join('node_modules', 'typescript', 'bin', 'tsc');
const PACKAGES = readdirSync(join(ROOT, 'packages')).filter((name) =>
  existsSync(join(ROOT, 'packages', name, 'package.json')),
);

/** What ships: the packages, each compiled from its `src/` to its `dist/`. @type {Build} */
const PRODUCT = {
  name: 'the packages',
  outputs: PACKAGES.map((name) => join('packages', name, 'dist')),
  sources: [
    'tsconfig.base.json',
    ...PACKAGES.flatMap((name) =>
      ['src', 'tsconfig.json', 'package.json'].map((entry) => join('packages', name, entry)),
    ),
    join('packages', 'sandbox', 'bundle.js'),
  ],
  steps: [[TSC, '-b', join('packages', 'floe')], [join('packages', 'sandbox', 'bundle.js')]],
};
/** The page that a server shows to people. It is bundled into the output of the package `server`. @type {Build} */
const DASHBOARD = {
  name: 'the dashboard',
  outputs: [join('packages', 'server', 'dist', 'dashboard')],
  sources: ['dashboard'],
  steps: [[join('node_modules', 'vite', 'bin', 'vite.js'), 'build', 'dashboard', '--logLevel', 'error']],
};
/** Everything else that runs: tools, benches, verification and examples. @type {Build} */
const PROGRAMS = {
  name: 'tools, benches and verification',
  outputs: ['.build'],
  sources: ['package.json', 'verify', 'bench', 'tools', 'examples'],
  steps: [[TSC, '-b', 'verify']],
};
/** Outputs of earlier layouts of the repository, which nothing reads any more. */
const OLD_OUTPUTS = ['dist'];

/** The compiled module of each command that has one; `build` and `start` need the product alone. @type {Record<string, string>} */
const MODULES = {
  test: 'tools/test.js',
  check: 'tools/check.js',
  generate: 'tools/generate.js',
  package: 'tools/package.js',
  verify: 'verify/main.js',
  bench: 'bench/main.js',
  docs: 'tools/site/main.js',
  walk: 'tools/walk.js',
};

/** Space that the packages and the compiled files of a checkout take on its disk, in MB. */
const CHECKOUT_MB = 270;
/** Space that npm's cache takes for the packages when it is empty, in MB. */
const CACHE_MB = 140;
/** Space that the demo's agent and its packages in npm's cache take, in MB. `floe demo` installs the agent and checks its disk. */
const AGENT_MB = 480;
/** Interval in milliseconds at which the process checks whether npm, which started it, still exists. */
const PARENT_CHECK_MS = 500;
/** @typedef {{ setTool(pid: number): void, release(): void }} Lock */

/** Prints an error in the form of the command line's errors, and ends this process. @param {string} text @returns {never} */
function fail(text, code = 'setup_failed', status = 1) {
  console.error(`error ${code}: ${text}`);
  process.exit(status);
}

/** Id of the process group of the tool that runs now, and a promise that it has ended. @type {{ group: number, ended: Promise<unknown> } | null} */
let tool = null;
let isStopping = false;

/**
 * Ends the tool that runs now and then this process, because a tool that continues would collide with the next start.
 * @param {NodeJS.Signals} signal
 */
async function stop(signal) {
  if (isStopping) return;
  isStopping = true;
  if (tool !== null) {
    const { group, ended } = tool;
    // npm ignores SIGTERM for seconds. What it leaves is removed by the next installation.
    await endGroup(group);
    await ended;
  }
  console.error('\nInterrupted before everything was installed. Run the command again to continue.');
  process.exit(128 + constants.signals[signal]);
}

/** Calls `onGone` when npm, which started this process, no longer exists: npm passes no signal on when it is killed. @param {() => void} onGone */
function watchParent(onGone) {
  const parent = process.ppid;
  const timer = setInterval(() => {
    if (process.ppid !== parent) onGone();
  }, PARENT_CHECK_MS);
  timer.unref();
}

/**
 * Runs a tool in the repository root with its output shown. Resolves with its exit status. The tool is in a process group of its own, so
 * that Ctrl-C in a terminal reaches this process alone, which then ends the whole group.
 * @param {Lock} lock @param {string} program @param {string[]} args @returns {Promise<number>}
 */
async function run(lock, program, args) {
  const child = spawn(program, args, { cwd: ROOT, stdio: ['ignore', 'inherit', 'inherit'], detached: true });
  const ended = once(child, 'exit').catch((error) => fail(`${program} could not be started: ${error.message}`));
  if (child.pid !== undefined) {
    lock.setTool(child.pid);
    tool = { group: child.pid, ended };
  }
  const [status] = await ended;
  // `stop` ends this process.
  if (isStopping) await new Promise(() => {});
  tool = null;
  return status ?? 1;
}

function checkNode() {
  const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
  const [minMajor = 0, minMinor = 0] = MIN_NODE;
  if (major > minMajor || (major === minMajor && minor >= minMinor)) return;
  fail(
    `floe needs Node ${MIN_NODE.join('.')} or newer; this is ${process.version}. One way: npm install --global node@24`,
  );
}

const PACKAGES_STAMP = join(ROOT, 'node_modules', '.floe-lock');

function packagesDigest() {
  return createHash('sha256')
    .update(readFileSync(join(ROOT, 'package-lock.json')))
    .digest('hex');
}

/** Whether node_modules was installed from this very lock file. */
function hasPackages() {
  return existsSync(PACKAGES_STAMP) && readFileSync(PACKAGES_STAMP, 'utf8') === packagesDigest();
}

/** Installs the locked packages with `npm ci`. @param {Lock} lock */
async function installPackages(lock) {
  const cache = npmCache();
  checkDisks(cache);
  console.error('▸ installing the locked packages (once, about 10 s)');
  const status = await run(lock, 'npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error']);
  if (status !== 0) fail(`npm could not install the packages, for the reason above; ${freeSpaceOf(ROOT)}`);
  writeFileSync(PACKAGES_STAMP, packagesDigest());
}

/** Returns the directory of npm's cache. Ends this process when it cannot be written to, because npm's own message advises otherwise. */
function npmCache() {
  const usual = process.env.npm_config_cache ?? join(homedir(), '.npm');
  if (writeProblem(usual) === null) return usual;
  // The user's settings may name another cache. npm takes half a second to print them, so it is asked only now.
  const asked = spawnSync('npm', ['config', 'get', 'cache'], { cwd: ROOT, encoding: 'utf8' });
  const cache = asked.status === 0 ? asked.stdout.trim() : usual;
  const problem = writeProblem(cache);
  if (problem === null) return cache;
  fail(
    `npm cannot write to its cache ${cache}: ${problem}; set npm_config_cache to a directory that you can write to, and FLOE_HOME and FLOE_HARNESS_DIR too if your home directory is read-only`,
  );
}

/** Returns why no file can be created in a directory, which is created if it is missing; `null` when files can be. @param {string} dir */
function writeProblem(dir) {
  try {
    mkdirSync(dir, { recursive: true });
    accessSync(dir, FILES.W_OK);
    return null;
  } catch (error) {
    return /** @type {Error} */ (error).message;
  }
}

/** Ends this process when a disk has less free space than the packages need. @param {string} cache directory of npm's cache */
function checkDisks(cache) {
  const cacheMb = existsSync(join(cache, '_cacache')) ? 0 : CACHE_MB;
  const isShared = statSync(cache).dev === statSync(ROOT).dev;
  checkDisk(ROOT, isShared ? CHECKOUT_MB + cacheMb : CHECKOUT_MB, 'clone floe to another disk');
  if (!isShared) checkDisk(cache, cacheMb, 'set npm_config_cache to a directory on another disk');
}

/** @param {string} dir @param {number} neededMb @param {string} remedy */
function checkDisk(dir, neededMb, remedy) {
  if (freeMb(dir) >= neededMb) return;
  fail(
    `${freeSpaceOf(dir)}, and floe needs about ${neededMb} MB there for its packages (the demo about ${AGENT_MB} MB more for its agent); free space, or ${remedy}`,
  );
}

/** @param {string} dir */
function freeMb(dir) {
  const { bavail, bsize } = statfsSync(dir);
  return Math.floor((bavail * bsize) / 1_000_000);
}

/** @param {string} dir */
function freeSpaceOf(dir) {
  return `the disk of ${dir} has ${freeMb(dir)} MB free`;
}

/** The latest modification time of a file, or of anything in a folder, in Unix milliseconds. @param {string} path @returns {number} */
function latestMtimeMs(path) {
  const { mtimeMs } = statSync(path);
  if (!statSync(path).isDirectory()) return mtimeMs;
  const times = readdirSync(path, { withFileTypes: true }).map((entry) =>
    entry.name === 'node_modules' ? 0 : latestMtimeMs(join(path, entry.name)),
  );
  return Math.max(mtimeMs, ...times);
}

/** Returns the path of the file that is written after a build. @param {Build} build */
function stampOf({ outputs }) {
  return join(ROOT, outputs[0] ?? '', '.stamp');
}

/** Whether a build ended after the last change of its sources. @param {Build} build */
function isBuilt(build) {
  const stamp = stampOf(build);
  const latest = Math.max(...build.sources.map((path) => latestMtimeMs(join(ROOT, path))));
  return existsSync(stamp) && statSync(stamp).mtimeMs > latest;
}

/** @param {Lock} lock @param {Build} build */
async function compile(lock, build) {
  console.error(`▸ compiling ${build.name}`);
  // Removes the compiled form of files that were moved or deleted.
  for (const output of build.outputs) rmSync(join(ROOT, output), { recursive: true, force: true });
  const startedAt = new Date();
  for (const step of build.steps) {
    const status = await run(lock, process.execPath, [...step]);
    if (status === 0) continue;
    console.error(`${build.name}: compiling failed; ${freeSpaceOf(ROOT)}`);
    process.exit(status);
  }
  const stamp = stampOf(build);
  mkdirSync(dirname(stamp), { recursive: true });
  writeFileSync(stamp, '');
  // A source that was changed while the compiler ran may not be in its output, so the next command compiles once more.
  utimesSync(stamp, startedAt, startedAt);
}

/** Installs and compiles what is missing or out of date. Only one process at a time does so. @param {Build[]} builds */
async function prepare(builds) {
  if (hasPackages() && builds.every(isBuilt)) return;
  const problem = writeProblem(ROOT);
  if (problem !== null)
    fail(`the checkout ${ROOT} cannot be written to: ${problem}; run floe as the owner of its files`);
  const lock = await lockCheckout(ROOT, (pid) => console.error(`▸ waiting for process ${pid}, which installs floe`));
  process.once('exit', lock.release);
  try {
    if (!hasPackages()) await installPackages(lock);
    for (const output of OLD_OUTPUTS) rmSync(join(ROOT, output), { recursive: true, force: true });
    // In this order, because compiling the packages removes the dashboard, which is in the output of one of them.
    for (const build of builds) if (!isBuilt(build)) await compile(lock, build);
  } finally {
    lock.release();
  }
}

const [command = '', ...args] = process.argv.slice(2);
const module = MODULES[command];
if (module === undefined && command !== 'start' && command !== 'build') {
  fail(`unknown command "${command}"; there are: start, build, ${Object.keys(MODULES).join(', ')}`, 'bad_request', 2);
}
checkNode();
/** @type {NodeJS.Signals[]} */
const STOP_SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'];
for (const name of STOP_SIGNALS) process.on(name, stop);
if (command === 'start') watchParent(() => process.kill(process.pid, 'SIGTERM'));
try {
  const shipped = [PRODUCT, DASHBOARD];
  await prepare(module === undefined ? shipped : [...shipped, PROGRAMS]);
} catch (error) {
  const { code, message } = /** @type {NodeJS.ErrnoException} */ (error);
  if (code === undefined) throw error;
  fail(`${message}; ${freeSpaceOf(ROOT)}`);
}
for (const name of STOP_SIGNALS) process.off(name, stop);
const main =
  module === undefined ? join(ROOT, 'packages', 'floe', 'dist', 'commands', 'main.js') : join(ROOT, '.build', module);
if (command !== 'build') {
  process.argv = [process.execPath, main, ...(command === 'start' ? ['demo'] : []), ...args];
  await import(pathToFileURL(main).href);
}
