import { FloeError } from '@floe-rl/core';
import type { Embeddings } from './embeddings.ts';
import { checkedQuery, hitsOf } from './fts.ts';
import type { IndexFile } from './index-file.ts';
import type { SearchBackend, SearchHit, StoredDocument } from './search.ts';

/** Number of multiplications after which a scan yields to other work, about every 5 ms. */
const SLICE_PRODUCTS = 5_000_000;
/** Number of rows that are loaded at once. */
const LOAD_ROWS = 5_000;
const PASSAGES_PER_DOCUMENT = 4;

type Loaded = { readonly passages: Float64Array; readonly values: Float32Array };

/**
 * Searches an index by the cosine similarity of vectors. The vectors are held in memory, 4 bytes for each dimension of a passage. The query's
 * vector is compared with all of them.
 */
export class DenseSearch implements SearchBackend {
  readonly hasDocuments = true;
  private readonly index: IndexFile;
  private readonly embeddings: Embeddings;
  private readonly dimensions: number;
  private loading: Promise<Loaded> | null = null;

  constructor(index: IndexFile, embeddings: Embeddings, dimensions: number) {
    this.index = index;
    this.embeddings = embeddings;
    this.dimensions = dimensions;
  }

  async search(query: string, count: number, signal: AbortSignal): Promise<readonly SearchHit[]> {
    this.loading ??= this.load();
    const [vectors, loaded] = await Promise.all([
      this.embeddings.vectorsOf([checkedQuery(query)], signal),
      this.loading,
    ]);
    const [vector] = vectors;
    if (vector?.length !== this.dimensions) {
      const message = `the embeddings service made a vector of ${vector?.length} numbers, and those of the index ${this.index.path} have ${this.dimensions}`;
      throw new FloeError('setup_failed', `${message}; use the model that made the index`);
    }
    const best = await this.nearest(loaded, vector, count * PASSAGES_PER_DOCUMENT, signal);
    return hitsOf(this.index, best, query, count);
  }

  document(id: string): StoredDocument | null {
    return this.index.document(id);
  }

  private async load(): Promise<Loaded> {
    const [row] = this.index.rows<{ count: number }>('select count(*) as count from vectors');
    const total = row?.count ?? 0;
    const passages = new Float64Array(total);
    const values = new Float32Array(total * this.dimensions);
    let last = -1;
    for (let loaded = 0; loaded < total; ) {
      const rows = this.index.rows<{ passage: number; vector: ArrayBuffer }>(
        'select passage, vector from vectors where passage > ? order by passage limit ?',
        last,
        LOAD_ROWS,
      );
      for (const { passage, vector } of rows) {
        passages[loaded] = passage;
        values.set(new Float32Array(vector), loaded * this.dimensions);
        last = passage;
        loaded++;
      }
      await otherWork();
    }
    return { passages, values };
  }

  private async nearest(
    { passages, values }: Loaded,
    vector: Float32Array,
    count: number,
    signal: AbortSignal,
  ): Promise<readonly { passage: number; score: number }[]> {
    const size = this.dimensions;
    const slice = Math.max(1, Math.floor(SLICE_PRODUCTS / size));
    let best: { passage: number; score: number }[] = [];
    for (let start = 0; start < passages.length; start += slice) {
      const end = Math.min(passages.length, start + slice);
      const worst = best.length < count ? Number.NEGATIVE_INFINITY : (best.at(-1)?.score ?? 0);
      for (let row = start; row < end; row++) {
        let score = 0;
        for (let i = 0, at = row * size; i < size; i++, at++) score += (values[at] ?? 0) * (vector[i] ?? 0);
        if (score > worst) best.push({ passage: passages[row] ?? 0, score });
      }
      best = best.sort((a, b) => b.score - a.score || a.passage - b.passage).slice(0, count);
      await otherWork();
      signal.throwIfAborted();
    }
    return best;
  }
}

/** Lets the event loop handle pending events. */
function otherWork(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
