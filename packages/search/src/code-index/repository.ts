import { createHash } from 'node:crypto';
import { promisify } from 'node:util';
import { gunzip } from 'node:zlib';
import { KIB, MIB, messageOf, shellWord } from '@floe-rl/core';
import { type ShellResult, ToolError, type ToolProcess } from '@floe-rl/sandbox';
import { extract } from 'tar-stream';
import { CODE_EXTENSIONS, grammarOf } from './languages.ts';

/** A file of code in a sandbox. */
export type CodeFile = {
  /** Path relative to the root, without `./`. */
  readonly path: string;
  /** SHA-256 of the content, in hexadecimal, as the sandbox reports it. */
  readonly digest: string;
  readonly bytes: number;
};

export type CodeFiles = {
  /** The files, ordered by path. */
  readonly files: readonly CodeFile[];
  /** Number of files that are left out because of the limits on sizes and counts. */
  readonly omitted: number;
};

/** Maximum size in bytes of a file that is indexed. */
const MAX_FILE_BYTES = 512 * KIB;
const MAX_FILES = 20_000;
/** Maximum size of all files together, in bytes. */
const MAX_TOTAL_BYTES = 64 * MIB;
/** Maximum size in bytes, and maximum number, of the files that one command reads. */
const PORTION_BYTES = 3 * MIB;
const PORTION_FILES = 500;
const LIST_TIMEOUT_MS = 60_000;
const LIST_OUTPUT_BYTES = 8 * MIB;
const PROGRAMS = ['find', 'xargs', 'wc', 'sha256sum', 'tar', 'gzip', 'base64'];
const SEPARATOR = '----- digests';

const inflate = promisify(gunzip);

type Shell = ToolProcess<ShellResult>;

/**
 * Lists the files of code below `root` in the sandbox: the files that git tracks or would track, or all files where there is no git
 * repository. The list is not trusted, because the agent may have changed the programs that make it. Rejects with a {@link ToolError} when the
 * code cannot be listed.
 */
export async function listCode(shell: Shell, root: string, signal: AbortSignal): Promise<CodeFiles> {
  const command = `(${LIST_FUNCTION}
cd -- ${shellWord(root)} && { list | xargs -0 -r wc -c -- 2>/dev/null; echo '${SEPARATOR}'; list | xargs -0 -r sha256sum -- 2>/dev/null; }; true)`;
  const output = await run(shell, command, LIST_OUTPUT_BYTES, signal);
  const [sizes = '', digests] = output.split(`${SEPARATOR}\n`);
  if (digests === undefined) throw new ToolError('unavailable', `the code below ${root} cannot be listed`);
  return chosen(parseSizes(sizes), digests);
}

/** Rejects with a {@link ToolError} that names the programs for listing and reading code that the sandbox lacks. */
export async function requirePrograms(shell: Shell, signal: AbortSignal): Promise<void> {
  const command = `for p in ${PROGRAMS.join(' ')}; do command -v "$p" >/dev/null || echo "$p"; done`;
  const missing = (await run(shell, command, KIB, signal)).trim();
  if (missing !== '') throw new ToolError('unavailable', `the sandbox has no ${missing.split('\n').join(', ')}`);
}

const LIST_FUNCTION = `list() { if git rev-parse --is-inside-work-tree >/dev/null 2>&1
then git ls-files -z -co --exclude-standard -- ${CODE_EXTENSIONS.map((end) => `'*${end}'`).join(' ')}
else find . -name .git -prune -o -type f \\( ${CODE_EXTENSIONS.map((end) => `-name '*${end}'`).join(' -o ')} \\) -print0; fi; }`;

function parseSizes(text: string): ReadonlyMap<string, number> {
  const sizes = new Map<string, number>();
  for (const line of text.split('\n')) {
    const [, bytes, path] = /^\s*(\d+) (.+)$/.exec(line) ?? [];
    if (path !== undefined) sizes.set(plain(path), Number(bytes));
  }
  return sizes;
}

function chosen(sizes: ReadonlyMap<string, number>, digests: string): CodeFiles {
  const all = new Map<string, CodeFile>();
  for (const line of digests.split('\n')) {
    const [, digest, name] = /^([0-9a-f]{64}) [ *](.+)$/.exec(line) ?? [];
    if (digest === undefined || name === undefined) continue;
    const path = plain(name);
    const bytes = sizes.get(path);
    if (bytes !== undefined && grammarOf(path) !== null) all.set(path, { path, digest, bytes });
  }
  let total = 0;
  const files = [...all.values()]
    .sort((a, b) => (a.path < b.path ? -1 : 1))
    .filter(({ bytes }) => bytes <= MAX_FILE_BYTES)
    .slice(0, MAX_FILES)
    .filter(({ bytes }) => {
      total += bytes;
      return total <= MAX_TOTAL_BYTES;
    });
  return { files, omitted: all.size - files.length };
}

/**
 * Reads files from the sandbox. A file is left out when the digest of its content is not the digest in `files`. Either the file has changed
 * since it was listed, or the sandbox reports wrong digests.
 */
export async function* readCode(
  shell: Shell,
  root: string,
  files: readonly CodeFile[],
  signal: AbortSignal,
): AsyncGenerator<{ readonly file: CodeFile; readonly text: string }> {
  for (const portion of portionsOf(files)) {
    const names = portion.map(({ path }) => shellWord(`./${path}`)).join(' ');
    const command = `(cd -- ${shellWord(root)} && printf '%s\\n' ${names} | tar -chf - -T - 2>/dev/null | gzip -1 | base64; true)`;
    const output = await run(shell, command, 3 * PORTION_BYTES, signal);
    const contents = await unpacked(Buffer.from(output, 'base64'));
    for (const file of portion) {
      const content = contents.get(file.path);
      if (content === undefined || sha256(content) !== file.digest) continue;
      yield { file, text: content.toString('utf8') };
    }
  }
}

function portionsOf(files: readonly CodeFile[]): CodeFile[][] {
  const portions: CodeFile[][] = [];
  let bytes = Number.POSITIVE_INFINITY;
  for (const file of files) {
    if (bytes + file.bytes > PORTION_BYTES || (portions.at(-1)?.length ?? 0) >= PORTION_FILES) {
      portions.push([]);
      bytes = 0;
    }
    portions.at(-1)?.push(file);
    bytes += file.bytes;
  }
  return portions;
}

async function unpacked(archive: Buffer): Promise<ReadonlyMap<string, Buffer>> {
  const contents = new Map<string, Buffer>();
  try {
    const tar = await inflate(archive, { maxOutputLength: 2 * PORTION_BYTES + MIB });
    const entries = extract();
    entries.end(tar);
    for await (const entry of entries) {
      const chunks: Buffer[] = [];
      for await (const chunk of entry) chunks.push(chunk as Buffer);
      contents.set(plain(entry.header.name), Buffer.concat(chunks));
    }
  } catch (error) {
    const reason = messageOf(error);
    throw new ToolError('unavailable', `the code cannot be read; the sandbox needs tar, gzip and base64 (${reason})`);
  }
  return contents;
}

async function run(shell: Shell, command: string, maxOutputBytes: number, signal: AbortSignal): Promise<string> {
  const result = await shell.run(command, { timeoutMs: LIST_TIMEOUT_MS, maxOutputBytes, killsRest: true }, signal);
  if (result.timedOut) throw new ToolError('failed', `the code was not read within ${LIST_TIMEOUT_MS / 1000} s`);
  if (result.droppedBytes > 0) throw new ToolError('too_large', 'there is too much code for the index');
  return result.stdout;
}

function plain(path: string): string {
  return path.replace(/^\.\//, '');
}

export function sha256(content: Buffer | string): string {
  return createHash('sha256').update(content).digest('hex');
}
