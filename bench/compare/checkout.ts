import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { cacheDir } from '#floe/commands/cache-dir';

/** A problem with the caller's request. The message states what to do. */
export class RequestError extends Error {}

/** Folder of the checked out commits. Each is a git worktree of its own, which is kept for the next comparison. */
const FOLDER = join(cacheDir(), 'compare');
/** The program that installs, compiles and starts everything of a commit. */
const STARTER = join('tools', 'run.js');

function git(root: string, ...args: readonly string[]): string {
  return execFileSync('git', ['-C', root, ...args], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] }).trim();
}

/** Returns the hash of the commit that `ref` names. Throws RequestError when there is none. */
export function commitOf(root: string, ref: string): string {
  try {
    return git(root, 'rev-parse', '--verify', '--quiet', '--end-of-options', `${ref}^{commit}`);
  } catch {
    throw new RequestError(`there is no commit "${ref}"; name a branch, a tag or a hash of this checkout`);
  }
}

/** Returns the paths of a checkout that have uncommitted changes and are compiled into the benches. */
export function changedFiles(root: string): string[] {
  const lines = git(root, 'status', '--porcelain', '--', 'packages', 'bench', 'verify', 'tools', 'package-lock.json');
  return lines === '' ? [] : lines.split('\n').map((line) => line.trim().replace(/^\S+\s+/, ''));
}

/**
 * Checks a commit out into a git worktree in the cache folder, unless it is there, and compiles it. Packages are shared as hard links if both
 * commits lock the same ones. Returns the folder. Throws RequestError when the commit is from before the benches had one starter.
 */
export function checkOut(root: string, commit: string): string {
  try {
    git(root, 'cat-file', '-e', `${commit}:${STARTER}`);
  } catch {
    throw new RequestError(`commit ${commit.slice(0, 12)} has no ${STARTER}, so it is too old to be compared`);
  }
  const folder = join(FOLDER, commit);
  if (!existsSync(folder)) {
    mkdirSync(FOLDER, { recursive: true });
    // A folder that was deleted by hand is still registered, which git refuses to replace.
    git(root, 'worktree', 'prune');
    git(root, 'worktree', 'add', '--detach', folder, commit);
    sharePackages(root, folder);
  }
  return folder;
}

function sharePackages(root: string, folder: string): void {
  const lockOf = (dir: string): string => readFileSync(join(dir, 'package-lock.json'), 'utf8');
  if (lockOf(root) !== lockOf(folder)) return;
  for (const packages of ['node_modules', join('dashboard', 'node_modules')]) {
    const source = join(root, packages);
    if (existsSync(source)) spawnSync('cp', ['-al', source, dirname(join(folder, packages))]);
  }
}

/** Compiles a checkout and returns the names of the benches that it has. Throws an Error when it cannot be compiled. */
export function benchesOf(folder: string): string[] {
  const { status, stdout } = spawnSync(process.execPath, [join(folder, STARTER), 'bench'], {
    cwd: folder,
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  if (status !== 0) throw new Error(`${folder} could not be compiled`);
  return [...stdout.matchAll(/^ {2}(\S+) {2}/gm)].map(([, name = '']) => name);
}

/** Runs a bench of a checkout and returns its JSON. Throws an Error that quotes its output when it fails. */
export function runBench(folder: string, name: string, args: readonly string[]): unknown {
  const { status, stdout, stderr } = spawnSync(
    process.execPath,
    [join(folder, STARTER), 'bench', name, ...args, '--json'],
    {
      cwd: folder,
      encoding: 'utf8',
    },
  );
  const lines = stdout.trim().split('\n');
  if (status !== 0) throw new Error(`bench ${name} of ${folder} failed: ${(stderr || stdout).trim().slice(-600)}`);
  return JSON.parse(lines.at(-1) ?? '');
}
