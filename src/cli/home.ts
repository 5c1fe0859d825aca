import { randomBytes } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';

/** Returns the directory of floe's persistent data and secrets: `$FLOE_HOME`, else `~/.floe`. */
export function floeHome(): string {
  return process.env.FLOE_HOME ?? join(homedir(), '.floe');
}

/** Returns the directory of installed harnesses: `$FLOE_HARNESS_DIR`, else a folder in the user's cache directory. */
export function harnessDir(): string {
  return (
    process.env.FLOE_HARNESS_DIR ?? join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'floe', 'harnesses')
  );
}

function tokenPath(home: string): string {
  return join(home, 'control-token');
}

/** Returns the bearer token in a floe home. Creates its file on first use, readable only by its owner. */
export function ensureToken(home: string): string {
  const existing = readToken(home);
  if (existing !== null) return existing;
  mkdirSync(home, { recursive: true, mode: 0o700 });
  writeFileSync(tokenPath(home), randomBytes(32).toString('base64url'), { mode: 0o600, flag: 'wx' });
  return readToken(home) ?? ensureToken(home);
}

/** Returns the bearer token in a floe home; `null` when it has no token file. */
export function readToken(home: string): string | null {
  const path = tokenPath(home);
  return existsSync(path) ? readFileSync(path, 'utf8').trim() : null;
}

/** Returns the secrets that sign callbacks, from the file `callback-secret` in a floe home; an empty list when the file does not exist. */
export function readCallbackSecrets(home: string): string[] {
  const path = join(home, 'callback-secret');
  return existsSync(path)
    ? readFileSync(path, 'utf8')
        .split(/\s+/)
        .filter((line) => line !== '')
    : [];
}
