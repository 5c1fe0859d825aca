import { randomBytes } from 'node:crypto';
import { existsSync, linkSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join, resolve } from 'node:path';
import { ensureWritableDir, FloeError, withContext } from '@floe-rl/core';
import { cacheDir } from './cache-dir.ts';

/** How to choose another directory for floe's persistent data, for messages about a directory that cannot be used. */
export const CHOOSE_HOME = 'set FLOE_HOME to a directory that you can write to';

/** Returns the directory of floe's persistent data and secrets: `$FLOE_HOME`, else `~/.floe`. */
export function floeHome(): string {
  return chosenDir('FLOE_HOME') ?? join(homedir(), '.floe');
}

/** Returns the directory of installed harnesses: `$FLOE_HARNESS_DIR`, else a folder in the user's cache directory. */
export function harnessDir(): string {
  return chosenDir('FLOE_HARNESS_DIR') ?? join(cacheDir(), 'harnesses');
}

/** Returns the directory of the images of sandboxes: `$FLOE_IMAGE_DIR`, else a folder in the user's cache directory. */
export function imageDir(): string {
  return chosenDir('FLOE_IMAGE_DIR') ?? join(cacheDir(), 'images');
}

/** Returns the absolute path in an environment variable; `null` when the variable is not set or empty. */
function chosenDir(name: string): string | null {
  const { [name]: path = '' } = process.env;
  return path === '' ? null : resolve(path);
}

function tokenPath(home: string): string {
  return join(home, 'control-token');
}

/**
 * Returns the bearer token in `home`, the directory of floe's persistent data. Creates the token file on first use, readable only by its
 * owner. Throws `setup_failed` when the directory cannot be written to.
 */
export function ensureToken(home: string): string {
  const existing = readToken(home);
  if (existing !== null) return existing;
  ensureWritableDir(home, CHOOSE_HOME);
  const path = tokenPath(home);
  const unfinished = `${path}.${process.pid}`;
  try {
    withContext({ remedy: CHOOSE_HOME, path }, () =>
      writeFileSync(unfinished, randomBytes(32).toString('base64url'), { mode: 0o600 }),
    );
    // The token is linked to its path when it is complete, so that a process that starts at the same time never reads a part of it.
    linkSync(unfinished, path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  } finally {
    rmSync(unfinished, { force: true });
  }
  return readToken(home) ?? ensureToken(home);
}

/**
 * Returns the bearer token in `home`, the directory of floe's persistent data; `null` when this directory has no token file. Throws
 * `setup_failed` when the file cannot be read or does not contain one word.
 */
export function readToken(home: string): string | null {
  const path = tokenPath(home);
  const text = readIfExists(path);
  if (text === null) return null;
  const [token, ...others] = wordsOf(text);
  if (token !== undefined && others.length === 0) return token;
  const problem = token === undefined ? 'is empty' : 'contains more than one word';
  const remedy = `write a token into it, or delete it with \`rm ${path}\`; the next start of a server then creates one`;
  throw new FloeError('setup_failed', `the file of the control token, ${path}, ${problem}: ${remedy}`, { path });
}

/**
 * Returns the secrets that sign callbacks, from the file `callback-secret` in `home`, the directory of floe's persistent data. Returns an
 * empty list when the file does not exist. Throws `setup_failed` when it cannot be read.
 */
export function readCallbackSecrets(home: string): string[] {
  return wordsOf(readIfExists(join(home, 'callback-secret')) ?? '');
}

/** Splits a text at white space. */
export function wordsOf(text: string): string[] {
  return text.split(/\s+/).filter((word) => word !== '');
}

/** Returns the text of a file; `null` when the file does not exist. Throws `setup_failed` when it cannot be read. */
function readIfExists(path: string): string | null {
  if (!existsSync(path)) return null;
  return withContext({ remedy: 'let this user read the file, or set FLOE_HOME to another directory', path }, () =>
    readFileSync(path, 'utf8'),
  );
}
