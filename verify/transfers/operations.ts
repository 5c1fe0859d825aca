// The transfers between host and sandbox, and between two sandboxes, each with one path of the agent.
import { posix } from 'node:path';
import { promisify } from 'node:util';
import { gunzip } from 'node:zlib';
import { MIB, systemClock } from '@floe-rl/core';
import { collect, type Runtime } from '@floe-rl/sandbox';
import { carryPaths } from '#evaluators/carried-paths';
import { carryPatch } from '#evaluators/patch';
import { CONTENT } from './hazards.ts';

/** Maximum number of bytes that an operation may transfer. */
const MAX_BYTES = MIB;
const MAX_ARCHIVE_BYTES = 2 ** 30;
const WRITTEN = 'written by floe';

export type Site = {
  readonly agent: Runtime;
  /** The sandbox to which files are carried. It is the first sandbox when an operation needs no second sandbox. */
  readonly fresh: Runtime;
  /** Path in the sandbox at which the agent has left a hazard. */
  readonly path: string;
  /** Directory on the host that is uploaded. */
  readonly uploads: string;
  readonly signal: AbortSignal;
};

/** What a transfer brought: all bytes that left the agent's sandbox or were written. They are searched for the secret. */
export type Brought = {
  readonly bytes: Buffer;
  /** Whether the content of a plain file arrived; `null` where the operation does not transfer it. */
  readonly hasContent: boolean | null;
};

/** A transfer. It rejects with an error that the caller judges. */
export type Operation = {
  readonly name: string;
  /** Whether the operation must succeed when the path is a plain file. */
  readonly takesPlain?: boolean;
  /** Whether the operation carries files to the second sandbox. */
  readonly needsFresh?: boolean;
  run(site: Site): Promise<Brought>;
};

export const OPERATIONS: readonly Operation[] = [
  { name: 'reading a file', run: read, takesPlain: true },
  { name: 'writing a file', run: write, takesPlain: true },
  { name: 'writing a file below the path', run: writeBelow },
  { name: 'uploading a directory to the path', run: upload },
  { name: 'packing artifacts', run: pack, takesPlain: true },
  { name: 'carrying files to a fresh sandbox', run: carry, needsFresh: true, takesPlain: true },
  { name: 'carrying a patch to a fresh sandbox', run: patch, needsFresh: true, takesPlain: true },
];

async function read({ agent, path, signal }: Site): Promise<Brought> {
  const bytes = await agent.readFile(path, MAX_BYTES, signal);
  if (bytes !== null && bytes.length > MAX_BYTES) throw new Error(`${bytes.length} bytes were read`);
  return { bytes: bytes ?? Buffer.alloc(0), hasContent: bytes?.toString() === CONTENT };
}

async function write({ agent, path, signal }: Site): Promise<Brought> {
  await agent.writeFiles([{ path, content: Buffer.from(WRITTEN) }], signal);
  return { bytes: Buffer.alloc(0), hasContent: null };
}

async function writeBelow({ agent, path, signal }: Site): Promise<Brought> {
  await agent.writeFiles([{ path: `${path}/below/new`, content: Buffer.from(WRITTEN) }], signal);
  return { bytes: Buffer.alloc(0), hasContent: null };
}

async function upload({ agent, path, uploads, signal }: Site): Promise<Brought> {
  await agent.uploadDir(uploads, path, signal);
  return { bytes: Buffer.alloc(0), hasContent: null };
}

async function pack({ agent, path, signal }: Site): Promise<Brought> {
  const packed = await collect(agent, { maxBytes: MAX_BYTES, paths: [path] }, signal);
  const archive = packed?.archive ?? null;
  if (archive !== null && archive.length > MAX_BYTES) throw new Error(`an archive of ${archive.length} bytes was made`);
  const bytes =
    archive === null ? Buffer.alloc(0) : await promisify(gunzip)(archive, { maxOutputLength: MAX_ARCHIVE_BYTES });
  return { bytes, hasContent: bytes.includes(CONTENT) };
}

async function carry({ agent, fresh, path, signal }: Site): Promise<Brought> {
  const relative = posix.relative(agent.paths.workdir, path);
  const carried = await carryPaths(agent, fresh, {
    ...{ paths: [relative], dir: null, limitSeconds: 20, clock: systemClock, signal },
  });
  const arrived = posix.join(fresh.paths.workdir, relative);
  return {
    bytes: await allBelow(fresh, arrived, signal),
    hasContent: carried.applied && (await hasPlain(fresh, arrived, signal)),
  };
}

async function patch({ agent, fresh, path, signal }: Site): Promise<Brought> {
  const config = { repo_dir: null, patch_command: null, apply_timeout: 20, exclude_patterns: [] };
  const carried = await carryPatch(agent, fresh, {
    evaluator: 'transfers',
    config,
    env: {},
    clock: systemClock,
    signal,
  });
  const arrived = posix.join(fresh.paths.workdir, posix.relative(agent.paths.workdir, path));
  return {
    bytes: await allBelow(fresh, arrived, signal),
    hasContent: carried.applied && (await hasPlain(fresh, arrived, signal)),
  };
}

async function hasPlain(runtime: Runtime, path: string, signal: AbortSignal): Promise<boolean> {
  return (await runtime.readFile(path, MAX_BYTES, signal).catch(() => null))?.toString() === CONTENT;
}

/** Returns the content of the regular files at and below a path. Links are not followed: what they name is no part of the transfer. */
async function allBelow(runtime: Runtime, path: string, signal: AbortSignal): Promise<Buffer> {
  const command = 'find "$P" -type f -size -4096k -exec cat {} + 2>/dev/null | head -c 4000000';
  const { stdout } = await runtime.exec({ command, env: { P: path } }, signal);
  return Buffer.from(stdout);
}
