import { randomBytes } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';

/** Where floe keeps what must outlive a process: `$FLOE_HOME`, else `~/.floe`. */
export function floeHome(): string {
  return process.env.FLOE_HOME ?? join(homedir(), '.floe');
}

/** Where harnesses are installed: `$FLOE_HARNESS_DIR`, else below the user's cache directory. */
export function harnessDir(): string {
  return (
    process.env.FLOE_HARNESS_DIR ?? join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'floe', 'harnesses')
  );
}

function tokenPath(home: string): string {
  return join(home, 'control-token');
}

/** The control token of this home, made on first use; readable by its owner only. */
export function ensureToken(home: string): string {
  const known = readToken(home);
  if (known !== null) return known;
  mkdirSync(home, { recursive: true, mode: 0o700 });
  writeFileSync(tokenPath(home), randomBytes(32).toString('base64url'), { mode: 0o600, flag: 'wx' });
  return readToken(home) ?? ensureToken(home);
}

export function readToken(home: string): string | null {
  const path = tokenPath(home);
  return existsSync(path) ? readFileSync(path, 'utf8').trim() : null;
}

/** The secrets that sign callbacks, one per line in the file `callback-secret` of this home; empty without one. */
export function readCallbackSecrets(home: string): string[] {
  const path = join(home, 'callback-secret');
  return existsSync(path)
    ? readFileSync(path, 'utf8')
        .split(/\s+/)
        .filter((line) => line !== '')
    : [];
}
