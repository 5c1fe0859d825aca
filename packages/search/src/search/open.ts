import { statSync } from 'node:fs';
import { FloeError } from '@floe-rl/core';
import { DenseSearch } from './dense.ts';
import { Embeddings } from './embeddings.ts';
import { WordSearch } from './fts.ts';
import { HttpSearch } from './http.ts';
import { IndexFile } from './index-file.ts';
import type { SearchBackend } from './search.ts';
import type { SearchSource } from './services.ts';

/** Open searches of this process by their source. They stay open, because all sessions share them. */
const opened = new Map<string, SearchBackend>();

/**
 * Returns the search of a node, which all sessions of the process share. An index file that was replaced is opened once more. Throws
 * `setup_failed` for an index that cannot be used.
 */
export function openSearch(source: SearchSource): SearchBackend {
  const key = JSON.stringify([source, source.kind === 'index' ? identityOf(source.path) : null]);
  const known = opened.get(key);
  if (known !== undefined) return known;
  const backend = backendOf(source);
  opened.set(key, backend);
  return backend;
}

function backendOf(source: SearchSource): SearchBackend {
  if (source.kind === 'http') return new HttpSearch(source.url, source.key);
  const index = new IndexFile(source.path);
  if (source.embeddings === null) return new WordSearch(index);
  if (index.vectors === null) {
    const message = `plugins.services.search_embeddings is set, but the index ${source.path} has no vectors; make it with: floe index --embeddings URL --embedding-model NAME`;
    throw new FloeError('setup_failed', message, { path: source.path });
  }
  const { model, dimensions } = index.vectors;
  return new DenseSearch(index, new Embeddings(source.embeddings.url, model, source.embeddings.key), dimensions);
}

/** Returns a text that changes when the file is replaced or changed; `null` when the file does not exist. */
function identityOf(path: string): string | null {
  const stat = statSync(path, { throwIfNoEntry: false });
  return stat === undefined ? null : `${stat.dev}:${stat.ino}:${stat.size}:${stat.mtimeMs}`;
}
