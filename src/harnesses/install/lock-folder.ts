import { createHash } from 'node:crypto';
import { copyFile, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { packageRoot } from '../../core/package-root.ts';
import type { HarnessInstall } from '../harness.ts';

/** Enough of the digest to tell two lock files apart. */
const DIGEST_CHARS = 12;

/** What each source needs of a lock folder; the first file is the lock itself. */
const LOCK_FILES = {
  npm: ['package-lock.json', 'package.json'],
  pip: ['requirements.txt'],
} as const satisfies Record<HarnessInstall['source'], readonly string[]>;

/** The folder of the lock files that ship with floe for the harness `name`. */
export function lockFolder(name: string): string {
  return join(packageRoot(), 'harness-locks', name);
}

/** `<version>-<digest of the lock>`: another lock is another installation. */
export async function installationName(install: HarnessInstall, lockDir: string): Promise<string> {
  const lock = await readFile(join(lockDir, LOCK_FILES[install.source][0]));
  const digest = createHash('sha256').update(lock).digest('hex').slice(0, DIGEST_CHARS);
  return `${install.version}-${digest}`;
}

export async function copyLock(install: HarnessInstall, lockDir: string, dir: string): Promise<void> {
  for (const file of LOCK_FILES[install.source]) await copyFile(join(lockDir, file), join(dir, file));
}
