import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { lstat, readdir, readFile, readlink } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { abortAfter, type Clock, FloeError, MIB, systemClock } from '@floe-rl/core';
import { type Pack, pack } from 'tar-stream';
import { ignoredBy } from './dockerignore.ts';
import { type ContainerEngine, progressOf } from './engine-api.ts';

/** Largest size of a build context in bytes, and the maximum number of its files. Larger contexts indicate a wrong folder. */
const MAX_CONTEXT_BYTES = 4096 * MIB;
const MAX_CONTEXT_FILES = 100_000;
/** Number of lines of the build's output that an error quotes, taken from its end. */
const QUOTED_LINES = 20;
const HASH_CHARS = 16;

export type ImageBuild = {
  /** Folder of the build context. */
  readonly context: string;
  /** Path of the Dockerfile in the context. */
  readonly dockerfile: string;
  /** Name of the image without a tag. The tag is a hash of the context. */
  readonly name: string;
  /** Time limit in seconds. */
  readonly limitSeconds: number;
  /** Network of the build's commands, such as `none`; default: the engine's own default. */
  readonly network?: string | undefined;
  readonly clock?: Clock | undefined;
  /** Called when the build starts, and not for an image that the engine has. */
  readonly onStart?: (() => void) | undefined;
};

type Entry = {
  readonly path: string;
  readonly kind: 'file' | 'directory' | 'link';
  readonly mode: number;
  readonly bytes: number;
  readonly target: string;
};

/**
 * Builds an image with a container engine and returns its reference, `<name>:<hash of the context>`. An image that the engine has under this
 * reference is not built again. Rejects with `setup_failed` when the build fails, with the end of its output in the message, and with
 * `runtime_unavailable` when the engine does not respond.
 */
export async function buildEngineImage(
  engine: ContainerEngine,
  build: ImageBuild,
  signal: AbortSignal,
): Promise<string> {
  const entries = await contextEntries(build);
  const reference = await referenceOf(entries, build, signal);
  if ((await engine.image(reference, signal)) !== null) return reference;
  build.onStart?.();
  const query = new URLSearchParams({ t: reference, dockerfile: build.dockerfile, rm: '1', forcerm: '1' });
  if (build.network !== undefined) query.set('networkmode', build.network);
  const late = () => buildError(reference, `it took longer than ${build.limitSeconds} s`, []);
  const limited = abortAfter(build.clock ?? systemClock, build.limitSeconds * 1000, late, signal);
  const archive = pack();
  let unreadable: Error | null = null;
  const packing = packContext(archive, entries, build.context).catch((error: Error) => {
    unreadable = error;
    archive.destroy(error);
  });
  try {
    const body = { type: 'application/x-tar', content: archive };
    const reply = await engine.send('POST', `/build?${query}`, body, limited.signal);
    requireSuccess(reference, reply.status, reply.body.toString());
  } catch (thrown) {
    limited.signal.throwIfAborted();
    if (unreadable === null) throw thrown;
    throw buildError(reference, `the build context cannot be read: ${String(unreadable)}`, []);
  } finally {
    archive.destroy();
    await packing;
    limited.release();
  }
  return reference;
}

/** Returns the reference under which {@link buildEngineImage} builds an image: `<name>:<hash of the context>`. */
export async function contextReference(build: ImageBuild, signal: AbortSignal): Promise<string> {
  return referenceOf(await contextEntries(build), build, signal);
}

async function referenceOf(entries: readonly Entry[], build: ImageBuild, signal: AbortSignal): Promise<string> {
  return `${build.name}:${await hashOf(entries, build, signal)}`;
}

/** Returns a name for the image of a task: lower-case letters, digits, `.`, `_` and `-`. */
export function imageName(prefix: string, name: string): string {
  const safe = name.toLowerCase().replaceAll(/[^a-z0-9]+/g, '-');
  return `${prefix}-${safe.replaceAll(/^-|-$/g, '') || 'image'}`.slice(0, 100).replace(/-$/, '');
}

async function contextEntries({ context, dockerfile }: ImageBuild): Promise<Entry[]> {
  const ignore = await readFile(join(context, '.dockerignore'), 'utf8').catch(() => '');
  const isIgnored = ignoredBy(ignore);
  const entries: Entry[] = [];
  let bytes = 0;
  const visit = async (folder: string): Promise<void> => {
    for (const name of (await readdir(join(context, folder))).sort()) {
      const path = folder === '' ? name : `${folder}/${name}`;
      const entry = await entryOf(context, path);
      if (entry === null) continue;
      // An ignored folder is visited nevertheless, because a later pattern may include a file in it.
      if (path === dockerfile || path === '.dockerignore' || !isIgnored(path)) entries.push(entry);
      bytes += entry.bytes;
      if (bytes > MAX_CONTEXT_BYTES || entries.length > MAX_CONTEXT_FILES) {
        const limits = `${MAX_CONTEXT_BYTES / MIB} MiB or ${MAX_CONTEXT_FILES} files`;
        throw new FloeError('setup_failed', `the build context ${context} has more than ${limits}`, { context });
      }
      if (entry.kind === 'directory') await visit(path);
    }
  };
  await visit('');
  return entries;
}

/** Returns an entry of the context; `null` for a socket, device or FIFO, which an image cannot contain. */
async function entryOf(context: string, path: string): Promise<Entry | null> {
  const info = await lstat(join(context, path));
  const entry = { path, mode: info.mode & 0o777, bytes: 0, target: '' };
  if (info.isDirectory()) return { ...entry, kind: 'directory' };
  if (info.isSymbolicLink()) return { ...entry, kind: 'link', target: await readlink(join(context, path)) };
  return info.isFile() ? { ...entry, kind: 'file', bytes: info.size } : null;
}

async function hashOf(entries: readonly Entry[], build: ImageBuild, signal: AbortSignal): Promise<string> {
  const hash = createHash('sha256').update(`${build.dockerfile}\0`);
  for (const { path, kind, mode, bytes, target } of entries) {
    hash.update(`${kind}\0${path}\0${mode}\0${bytes}\0${target}\0`);
    if (kind !== 'file') continue;
    for await (const chunk of createReadStream(join(build.context, path), { signal })) hash.update(chunk as Buffer);
  }
  return hash.digest('hex').slice(0, HASH_CHARS);
}

async function packContext(archive: Pack, entries: readonly Entry[], context: string): Promise<void> {
  for (const { path, kind, mode, bytes, target } of entries) {
    // The owner and the times of files are the same in every build, so that the engine's own cache recognizes equal files.
    const header = { name: path, mode, mtime: new Date(0) };
    if (kind === 'file') {
      const entry = archive.entry({ ...header, size: bytes });
      await pipeline(createReadStream(join(context, path), { end: Math.max(bytes - 1, 0) }) as Readable, entry);
    } else if (kind === 'directory') archive.entry({ ...header, type: 'directory' });
    else archive.entry({ ...header, type: 'symlink', linkname: target });
  }
  archive.finalize();
}

/** Throws when the engine refused the build, or when its output, one JSON object per line, contains an error. */
function requireSuccess(reference: string, status: number, text: string): void {
  const output: string[] = [];
  for (const line of text.split('\n')) {
    const { stream, error, message } = progressOf(line);
    if (stream !== undefined) output.push(stream);
    const reason = error ?? (status >= 300 ? message : undefined);
    if (reason !== undefined) throw buildError(reference, reason, output);
  }
  if (status >= 300) throw buildError(reference, `the container engine replied with status ${status}`, output);
}

/** Returns the error for a build that failed, with the end of its output in the message. */
export function buildError(reference: string, reason: string, output: readonly string[]): FloeError {
  const tail = output.join('').trimEnd().split('\n').slice(-QUOTED_LINES).join('\n');
  const message = `the image ${reference} could not be built: ${reason}${tail === '' ? '' : `\n${tail}`}`;
  return new FloeError('setup_failed', message, { image: reference, reason, output: tail });
}
