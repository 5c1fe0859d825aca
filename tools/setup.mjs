// Brings a fresh clone to a built state, doing only what is missing: locked packages, then dist/.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

export const ROOT = dirname(dirname(fileURLToPath(import.meta.url)));
const MIN_NODE = [20, 19];

/** Runs a program in the repository root with its output shown; ends this process when it fails. */
export function run(program, args, options = {}) {
  const result = spawnSync(program, args, { cwd: ROOT, stdio: 'inherit', ...options });
  if (result.error) fail(`${program} could not be started: ${result.error.message}`);
  if (result.status !== 0) process.exit(result.status ?? 1);
}

export function fail(message) {
  console.error(`\n${message}`);
  process.exit(1);
}

export function step(text) {
  console.error(`▸ ${text}`);
}

function digest(...paths) {
  const hash = createHash('sha256');
  for (const path of paths) hash.update(readFileSync(path));
  return hash.digest('hex');
}

function checkNode() {
  const [major, minor] = process.versions.node.split('.').map(Number);
  if (major < MIN_NODE[0] || (major === MIN_NODE[0] && minor < MIN_NODE[1])) {
    fail(
      `floe needs Node ${MIN_NODE.join('.')} or newer; this is ${process.version}. One way: npm install --global node@24`,
    );
  }
}

/** `npm ci` unless node_modules was made from this very lock file. */
export function ensurePackages() {
  checkNode();
  const stamp = join(ROOT, 'node_modules', '.floe-lock');
  const wanted = digest(join(ROOT, 'package-lock.json'));
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === wanted) return;
  step('installing the locked packages (once, about 10 s)');
  run(process.platform === 'win32' ? 'npm.cmd' : 'npm', [
    'ci',
    '--ignore-scripts',
    '--no-audit',
    '--no-fund',
    '--loglevel=error',
  ]);
  writeFileSync(stamp, wanted);
}

function newestMtime(dir) {
  let newest = statSync(dir).mtimeMs;
  for (const entry of readdirSync(dir, { withFileTypes: true })) {
    const path = join(dir, entry.name);
    newest = Math.max(newest, entry.isDirectory() ? newestMtime(path) : statSync(path).mtimeMs);
  }
  return newest;
}

/** Compiles src/ to dist/ when anything in src/ is newer than the last build. */
export function ensureBuild() {
  const stamp = join(ROOT, 'dist', '.stamp');
  const newest = Math.max(newestMtime(join(ROOT, 'src')), statSync(join(ROOT, 'tsconfig.json')).mtimeMs);
  if (existsSync(stamp) && statSync(stamp).mtimeMs > newest) return;
  step('building');
  // A file that was moved must not live on in dist/.
  rmSync(join(ROOT, 'dist'), { recursive: true, force: true });
  run(process.execPath, [join(ROOT, 'node_modules', 'typescript', 'bin', 'tsc'), '-p', 'tsconfig.json']);
  mkdirSync(join(ROOT, 'dist'), { recursive: true });
  writeFileSync(stamp, '');
}

export function setUp() {
  ensurePackages();
  ensureBuild();
}
