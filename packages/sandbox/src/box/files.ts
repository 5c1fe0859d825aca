import { constants } from 'node:fs';
import { chmod, chown, type FileHandle, lchown, mkdir, open, readlink, rm, stat, symlink } from 'node:fs/promises';
import { dirname } from 'node:path';
import type { FileOwner, FileReply, FileRequest } from './messages.ts';
import { refuseForeignLinks, refuseUnreadable } from './ownership.ts';
import { rootVariables } from './users.ts';

const CREATE_FLAGS = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW;
/** Permission bits that let every user pass through a directory to the files in it. */
const PASS_BITS = 0o111;
const READ_FLAGS = constants.O_RDONLY | constants.O_NONBLOCK;

/** Reads and writes files of the sandbox for the gateway. Runs in the sandbox. */
export class BoxFiles {
  private readonly reply: (message: FileReply, body?: Buffer) => void;
  private readonly hasUser: boolean;
  /** Files that are being written, by the number of the request. A promise settles when all parts that have arrived are written. */
  private readonly open = new Map<number, Promise<FileHandle>>();

  /** `hasUser` is whether commands run as a user other than root, whose links must not lead to files of others. */
  constructor(reply: (message: FileReply, body?: Buffer) => void, hasUser: boolean) {
    this.reply = reply;
    this.hasUser = hasUser;
  }

  /** Performs a request and replies when it is done. Never throws. */
  receive(request: FileRequest, body: Buffer): void {
    const { id } = request;
    if (request.type === 'create_file') {
      this.continueFile(id, this.create(request.path, request.mode, request.owner));
      return;
    }
    if (request.type === 'append') {
      const written = this.open.get(id);
      if (written !== undefined) this.continueFile(id, append(written, body));
      return;
    }
    this.perform(request).then(
      (outcome) => {
        if (Buffer.isBuffer(outcome)) this.reply({ type: 'file_done', id }, outcome);
        else this.reply({ type: outcome, id });
      },
      (cause: Error) => this.reply({ type: 'file_failed', id, message: cause.message }),
    );
  }

  /** Stores the promise of the file's last write. A failure is reported when the gateway closes the file, which can be later. */
  private continueFile(id: number, written: Promise<FileHandle>): void {
    written.catch(() => {});
    this.open.set(id, written);
  }

  private async perform(
    request: Exclude<FileRequest, { type: 'create_file' | 'append' }>,
  ): Promise<'file_done' | 'file_absent' | 'file_too_large' | Buffer> {
    switch (request.type) {
      case 'check_directory':
        if (request.owner === null) await this.checkLinks(request.path);
        return (await isDirectory(request.path)) ? 'file_done' : 'file_absent';
      case 'create_directory':
        await this.checkLinks(request.path);
        await makeDirectories(request.path, request.owner);
        if (request.adopts === true) await adopt(request.path, request.owner);
        return 'file_done';
      case 'make_reachable':
        await makeReachable(request.path);
        return 'file_done';
      case 'create_link':
        await this.checkLinks(dirname(request.path));
        await makeDirectories(dirname(request.path), request.owner);
        await rm(request.path, { force: true });
        await symlink(request.target, request.path);
        if (request.owner !== null) await lchown(request.path, request.owner.uid, request.owner.gid);
        return 'file_done';
      case 'close_file': {
        const written = this.open.get(request.id);
        this.open.delete(request.id);
        await (await written)?.close();
        return 'file_done';
      }
      case 'root_variables':
        return Buffer.from(JSON.stringify(await rootVariables(request.user, request.variables)));
      case 'read_file':
        if (request.owner === null) await this.checkLinks(request.path);
        return read(request.path, request.owner, request.maxBytes);
      case 'read_part':
        return readPart(request.path, request.offset, request.maxBytes);
    }
  }

  private async create(path: string, mode: number, owner: FileOwner): Promise<FileHandle> {
    await this.checkLinks(dirname(path));
    await makeDirectories(dirname(path), owner);
    // Removes an existing symbolic link at the path first, so that the file is not written through the link.
    await rm(path, { force: true });
    const handle = await open(path, CREATE_FLAGS, 0o600);
    if (owner !== null) await handle.chown(owner.uid, owner.gid);
    await handle.chmod(mode);
    return handle;
  }

  private async checkLinks(path: string): Promise<void> {
    if (this.hasUser) await refuseForeignLinks(path);
  }
}

/** Creates a directory with its missing parents. The new directories belong to the owner. */
async function makeDirectories(path: string, owner: FileOwner): Promise<void> {
  if (await isDirectory(path)) return;
  await makeDirectories(dirname(path), owner);
  await mkdir(path);
  await adopt(path, owner);
}

async function adopt(path: string, owner: FileOwner): Promise<void> {
  if (owner !== null) await chown(path, owner.uid, owner.gid);
}

/** Lets all users pass through the directories that contain `path`. */
async function makeReachable(path: string): Promise<void> {
  const parent = dirname(path);
  if (parent === path) return;
  await makeReachable(parent);
  const { mode } = await stat(parent);
  if ((mode & PASS_BITS) !== PASS_BITS) await chmod(parent, (mode | PASS_BITS) & 0o7777);
}

async function append(written: Promise<FileHandle>, body: Buffer): Promise<FileHandle> {
  const handle = await written;
  try {
    await handle.writeFile(body);
    return handle;
  } catch (error) {
    await handle.close();
    throw error;
  }
}

async function isDirectory(path: string): Promise<boolean> {
  return stat(path).then(
    (info) => info.isDirectory(),
    () => false,
  );
}

async function read(
  path: string,
  owner: FileOwner,
  maxBytes: number,
): Promise<'file_absent' | 'file_too_large' | Buffer> {
  const info = await stat(path).catch(() => null);
  if (!info?.isFile()) return 'file_absent';
  const handle = await open(path, READ_FLAGS);
  try {
    const opened = await handle.stat();
    if (!opened.isFile()) return 'file_absent';
    if (owner !== null) await refuseUnreadable(owner, await readlink(`/proc/self/fd/${handle.fd}`), opened);
    const content = Buffer.alloc(Math.min(info.size, maxBytes) + 1);
    const { bytesRead } = await handle.read(content);
    return bytesRead > maxBytes ? 'file_too_large' : content.subarray(0, bytesRead);
  } finally {
    await handle.close();
  }
}

async function readPart(path: string, offset: number, maxBytes: number): Promise<'file_absent' | Buffer> {
  const handle = await open(path, READ_FLAGS | constants.O_NOFOLLOW).catch(() => null);
  if (handle === null) return 'file_absent';
  try {
    if (!(await handle.stat()).isFile()) return 'file_absent';
    const { buffer, bytesRead } = await handle.read(Buffer.alloc(maxBytes), 0, maxBytes, offset);
    return buffer.subarray(0, bytesRead);
  } finally {
    await handle.close();
  }
}
