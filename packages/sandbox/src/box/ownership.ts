import type { Stats } from 'node:fs';
import { lstat, readlink, realpath, stat } from 'node:fs/promises';
import { dirname, isAbsolute, resolve } from 'node:path';

/** Maximum number of symbolic links on the way to a path, as in Linux. */
const MAX_LINKS = 40;
/** Permission bits of a mode for all other users. */
const PERMISSIONS = { read: 0o4, write: 0o2, pass: 0o1 };

/** A user in a sandbox, and the only group of the user. */
export type UserIds = { readonly uid: number; readonly gid: number };

/**
 * Rejects when a symbolic link on the way to `path` belongs to a user other than root and leads to a file of another user. Without this check,
 * a user of the sandbox could redirect file operations of root to any file.
 */
export async function refuseForeignLinks(path: string): Promise<void> {
  for await (const { at, info } of waypoints(path)) {
    if (!info.isSymbolicLink() || info.uid === 0) continue;
    const target = await stat(at).catch(() => null);
    if (target !== null && target.uid !== info.uid)
      throw new Error(`${at} is a link of a user to a file that another user owns`);
  }
}

/**
 * Whether `user` can neither change nor replace the file at `path`. Returns false for a relative path. Rejects for a path with too many links.
 */
export async function isProtectedFrom(user: UserIds, path: string): Promise<boolean> {
  if (!isAbsolute(path)) return false;
  for await (const { info } of waypoints(path)) {
    if (info.uid === user.uid) return false;
    if (!info.isSymbolicLink() && isPermitted(user, info, 'write')) return false;
  }
  return true;
}

/** Rejects when `user` may not read the file with the real path `path`, whose information is `info`. */
export async function refuseUnreadable(user: UserIds, path: string, info: Stats): Promise<void> {
  let isReadable = isPermitted(user, info, 'read');
  for (let at = path; isReadable && at !== dirname(at); ) {
    at = dirname(at);
    isReadable = isPermitted(user, await stat(at), 'pass');
  }
  if (!isReadable) throw new Error('permission denied');
}

function isPermitted({ uid, gid }: UserIds, info: Stats, permission: keyof typeof PERMISSIONS): boolean {
  const shift = info.uid === uid ? 6 : info.gid === gid ? 3 : 0;
  return (info.mode & (PERMISSIONS[permission] << shift)) !== 0;
}

type Waypoint = { readonly at: string; readonly info: Stats };

/**
 * Yields each directory and link on the way to a path, starting at the root, and then the file at the path. Ends at the first part of the path
 * that does not exist.
 */
async function* waypoints(path: string, links = { left: MAX_LINKS }): AsyncGenerator<Waypoint, boolean> {
  const parent = dirname(path);
  if (parent !== path && !(yield* waypoints(parent, links))) return false;
  const info = await lstat(path).catch(() => null);
  if (info === null) return false;
  yield { at: path, info };
  if (!info.isSymbolicLink()) return true;
  if (links.left-- === 0) throw new Error(`${path} leads through too many links`);
  return yield* waypoints(resolve(await realpath(parent), await readlink(path)), links);
}
