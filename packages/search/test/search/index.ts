import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { FloeError } from '@floe-rl/core';
import { type BuildOptions, type BuildSummary, buildIndex } from '../../src/search/build.ts';

export const { signal } = new AbortController();

export function emptyFolder(): string {
  return mkdtempSync(join(tmpdir(), 'floe-search-'));
}

/** Writes rows to a file, one per line. A row that is a text is written unchanged, all others as JSON. */
export function rowsFile(rows: readonly unknown[]): string {
  const path = join(emptyFolder(), 'rows.jsonl');
  writeFileSync(path, rows.map((row) => (typeof row === 'string' ? row : JSON.stringify(row))).join('\n'));
  return path;
}

export type Built = BuildSummary & { readonly path: string; readonly badRows: readonly string[] };

/** Makes an index in an empty folder. Bad rows are left out. */
export async function built(source: string, options: Partial<BuildOptions> = {}): Promise<Built> {
  const badRows: string[] = [];
  const output = options.output ?? join(emptyFolder(), 'index.db');
  const summary = await buildIndex(
    {
      source,
      output,
      replaces: false,
      embeddings: null,
      onBadRow: (_: string, error: FloeError) => badRows.push(error.message),
      mayFinish: () => {},
      onProgress: () => {},
      ...options,
    },
    signal,
  );
  return { ...summary, path: output, badRows };
}
