import { FloeError, messageOf } from '@floe-rl/core';
import type { ShellResult, ToolProcess } from '@floe-rl/sandbox';
import { grammarOf } from './languages.ts';
import { type ParsedCode, requireTreeSitter } from './parse.ts';
import { CodeParser } from './parser.ts';
import type { CodeSearch } from './query.ts';
import { type CodeFile, listCode, readCode, requirePrograms, sha256 } from './repository.ts';
import { CodeStore } from './store.ts';

/** Number of indexes that a process keeps open. */
const MAX_OPEN = 16;
/** A new index is made from a copy of an open index that has at least this share of its files. */
const MIN_SHARED = 0.5;

/** An index that is open. */
type OpenIndex = {
  readonly key: string;
  readonly search: CodeSearch;
  /** Digests of the indexed files by their paths. */
  readonly digests: ReadonlyMap<string, string>;
};

/** The code of a sandbox as it is now. */
export type IndexedCode = {
  readonly search: CodeSearch;
  readonly fileCount: number;
  /** Number of files that are left out because of the limits on sizes and counts. */
  readonly omitted: number;
  /** Number of files that were read and parsed for this call. */
  readonly parsed: number;
};

type Shell = ToolProcess<ShellResult>;

/** Indexes of the code of sandboxes, shared by the sessions of a process. The index files are shared by all processes of a machine. */
export class CodeIndexes {
  private readonly store: CodeStore;
  private readonly parser = new CodeParser();
  /** Open indexes by their keys. The index that was used last is at the end. */
  private readonly open = new Map<string, OpenIndex>();
  /** Resolves when the index that is being made is finished. Only one index is made at a time. */
  private making: Promise<unknown> = Promise.resolve();

  constructor(folder: string) {
    this.store = new CodeStore(folder);
  }

  /**
   * Returns the index of the code below `root`. Files that the most similar open index already has are not read and parsed. Rejects with a
   * `ToolError` when the code cannot be read, with `setup_failed` when the optional packages are missing, or with the reason of `signal`.
   */
  async update(shell: Shell, root: string, signal: AbortSignal): Promise<IndexedCode> {
    await requireTreeSitter();
    const { files, omitted } = await listCode(shell, root, signal);
    const existing = this.find(keyOf(files));
    if (existing !== null) return { search: existing.search, fileCount: files.length, omitted, parsed: 0 };
    const made = this.making.then(() => this.make(shell, root, files, signal));
    this.making = made.catch(() => {});
    const { index, parsed } = await made;
    return { search: index.search, fileCount: index.digests.size, omitted, parsed };
  }

  /**
   * Resolves with the reason why the code of a sandbox cannot be indexed; `null` when it can. Reasons are missing programs in the sandbox,
   * missing optional packages, and a folder of indexes that cannot be written. Rejects with the reason of `signal`.
   */
  async problem(shell: Shell, signal: AbortSignal): Promise<string | null> {
    try {
      await requireTreeSitter();
      this.store.requireWritable();
      await requirePrograms(shell, signal);
      return null;
    } catch (error) {
      signal.throwIfAborted();
      return messageOf(error);
    }
  }

  /** Ends the thread that parses. */
  close(): Promise<void> {
    return this.parser.close();
  }

  /** Returns the index with this key, from this process or from the directory. */
  private find(key: string): OpenIndex | null {
    const known = this.open.get(key);
    if (known !== undefined) return this.keep(known);
    const search = this.store.open(key);
    return search === null ? null : this.keep({ key, search, digests: search.digests() });
  }

  private async make(
    shell: Shell,
    root: string,
    files: readonly CodeFile[],
    signal: AbortSignal,
  ): Promise<{ readonly index: OpenIndex; readonly parsed: number }> {
    signal.throwIfAborted();
    const existing = this.find(keyOf(files));
    if (existing !== null) return { index: existing, parsed: 0 };
    const base = this.mostSimilar(files);
    const missing = files.filter(({ path, digest }) => base?.digests.get(path) !== digest);
    const writer = this.store.create(base?.key ?? null);
    const digests = new Map(files.map(({ path, digest }) => [path, digest]));
    try {
      for (const [path, digest] of base?.digests ?? []) if (digests.get(path) !== digest) writer.remove(path);
      // The key has only files that were read with the listed digest. Other sandboxes may use the index, so the key must not depend on digests
      // that this sandbox only claims.
      for (const { path } of missing) digests.delete(path);
      for await (const { file, text } of readCode(shell, root, missing, signal)) {
        writer.add(file, text, await this.parsed(file, text, signal));
        digests.set(file.path, file.digest);
      }
      const key = keyOf([...digests].map(([path, digest]) => ({ path, digest })));
      writer.finish();
      const search = this.store.publish(writer, key);
      return { index: this.keep({ key, search, digests }), parsed: missing.length };
    } catch (error) {
      writer.discard();
      throw error;
    }
  }

  private parsed({ path }: CodeFile, text: string, signal: AbortSignal): Promise<ParsedCode> {
    const grammar = grammarOf(path);
    if (grammar === null) throw new FloeError('internal', `${path} is listed, but is no code`);
    return this.parser.parse(text, grammar, signal);
  }

  private mostSimilar(files: readonly CodeFile[]): OpenIndex | null {
    let best: OpenIndex | null = null;
    let most = Math.max(1, files.length * MIN_SHARED);
    for (const index of this.open.values()) {
      const shared = files.filter(({ path, digest }) => index.digests.get(path) === digest).length;
      if (shared < most || !this.store.has(index.key)) continue;
      best = index;
      most = shared;
    }
    return best;
  }

  private keep(index: OpenIndex): OpenIndex {
    this.open.delete(index.key);
    this.open.set(index.key, index);
    const [oldest] = this.open.keys();
    // The database is not closed here, because a session may still search in it. It is closed when it is garbage-collected.
    if (this.open.size > MAX_OPEN && oldest !== undefined) this.open.delete(oldest);
    return index;
  }
}

function keyOf(files: readonly { readonly path: string; readonly digest: string }[]): string {
  const lines = files.map(({ path, digest }) => `${digest} ${path}\n`).sort();
  return sha256(lines.join(''));
}
