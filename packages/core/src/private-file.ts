import { chmodSync, closeSync, openSync, statSync } from 'node:fs';

/** Mode of a file with secrets, tasks or results: only its owner may read and write it, whatever the mode of its directory. */
export const PRIVATE_FILE_MODE = 0o600;
/** Mode of a directory of private files. */
export const PRIVATE_DIR_MODE = 0o700;

/** Permissions of users other than the owner. */
const OF_OTHERS = 0o077;

/** Creates an empty file that only its owner may read and write. Does nothing when the file exists. */
export function createPrivateFile(path: string): void {
  closeSync(openSync(path, 'a', PRIVATE_FILE_MODE));
}

/**
 * Takes the permissions of a file from all users but its owner. Returns a notice about the change, or about the reason why it failed; `null`
 * when the file does not exist or was private already.
 */
export function restrictToOwner(path: string): string | null {
  const mode = statSync(path, { throwIfNoEntry: false })?.mode ?? 0;
  if ((mode & OF_OTHERS) === 0) return null;
  const before = `${path} was accessible to other users of this machine (mode ${(mode & 0o777).toString(8)})`;
  try {
    chmodSync(path, mode & 0o777 & ~OF_OTHERS);
    return `${before}; it is now restricted to its owner. Replace the secrets in it if others could have read them`;
  } catch (thrown) {
    return `${before}, and restricting it failed: ${(thrown as Error).message}; run \`chmod 600\` as its owner`;
  }
}
