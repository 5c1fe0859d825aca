import type { VersionSpan } from '@floe-rl/core/schema';
import { LRUCache } from 'lru-cache';
import { hashNumbers, hashText } from './random.ts';

/** Number of tokens per cache block; vLLM's default. */
export const BLOCK_TOKENS = 16;

/** A sequence in the prefix cache, to which sampled tokens can be added. */
export type CachedSequence = {
  /** Number of leading prompt tokens that were in the cache before this prompt was admitted. */
  readonly cachedTokens: number;
  /** The policy versions whose weights computed the cache entries of the prompt's tokens, as spans without gaps. */
  readonly versionSpans: readonly VersionSpan[];
  /** Adds to the cache the tokens that follow the prompt. `versions` contains, for each token, the policy version that computed it. */
  extend(ids: readonly number[], versions: readonly string[]): void;
};

/** A policy version and the number of consecutive tokens whose cache entries it computed. */
type VersionRun = { readonly version: string; readonly tokens: number };

/**
 * Models an engine's KV prefix cache. It stores hashes of full blocks, each chained to the previous block's hash, and evicts the least
 * recently used block. Unlike a real engine, it also stores which weights computed each block.
 */
export class PrefixCache {
  /** Maximum number of blocks that the cache holds. */
  readonly capacity: number;
  private readonly blocks: LRUCache<string, readonly VersionRun[]>;

  constructor(capacityBlocks: number) {
    this.capacity = capacityBlocks;
    this.blocks = new LRUCache({ max: capacityBlocks });
  }

  /** Number of cached blocks. */
  get size(): number {
    return this.blocks.size;
  }

  /**
   * Adds a prompt to the cache. The returned `cachedTokens` is a multiple of the block size and always less than the whole prompt, because
   * an engine computes at least the last token. Prompts with different salts share no blocks. `version` is the policy version that computes
   * the tokens that are not cached.
   */
  admit(promptIds: ArrayLike<number>, salt: string, version: string): CachedSequence {
    const chain = new BlockChain(salt);
    const last = Math.floor((promptIds.length - 1) / BLOCK_TOKENS);
    const runs: VersionRun[] = [];
    let hits = 0;
    let intact = true;
    for (const [block, { key, runs: computed }] of chain.push(promptIds, () => version).entries()) {
      const cached = this.blocks.get(key);
      intact &&= cached !== undefined;
      if (intact && block < last) {
        hits++;
        runs.push(...(cached ?? []));
      }
      if (cached === undefined) this.blocks.set(key, computed);
    }
    const cachedTokens = hits * BLOCK_TOKENS;
    return {
      cachedTokens,
      versionSpans: spansOf([...runs, { version, tokens: promptIds.length - cachedTokens }]),
      extend: (ids, versions) => {
        for (const { key, runs: computed } of chain.push(ids, (index) => versions[index] ?? version)) {
          if (!this.blocks.has(key)) this.blocks.set(key, computed);
        }
      },
    };
  }

  clear(): void {
    this.blocks.clear();
  }
}

/** Joins neighbouring runs of the same version to spans. */
function spansOf(runs: readonly VersionRun[]): VersionSpan[] {
  const spans: VersionSpan[] = [];
  let at = 0;
  for (const { version, tokens } of runs) {
    const last = spans.at(-1);
    if (last?.version === version) last.end += tokens;
    else if (tokens > 0) spans.push({ version, start: at, end: at + tokens });
    at += tokens;
  }
  return spans;
}

/** A full block: its key, and the policy versions that computed its tokens. */
type Block = { readonly key: string; readonly runs: readonly VersionRun[] };

/** Computes the keys of the full blocks of a growing sequence. Each key depends on the salt and on all tokens up to the block's end. */
class BlockChain {
  private chainA: number;
  private chainB: number;
  private length = 0;
  /** The versions of the tokens of the last, incomplete block. */
  private runs: VersionRun[] = [];

  constructor(salt: string) {
    this.chainA = hashText(salt);
    this.chainB = hashNumbers(this.chainA, 7);
  }

  /**
   * Appends tokens and returns the blocks that they complete. `versionOf` returns the policy version that computed the token at an index of
   * `ids`.
   */
  push(ids: ArrayLike<number>, versionOf: (index: number) => string): Block[] {
    const blocks: Block[] = [];
    for (let i = 0; i < ids.length; i++) {
      this.chainA = hashNumbers(this.chainA, ids[i] as number);
      this.chainB = (Math.imul(this.chainB, 0x01000193) ^ (ids[i] as number)) >>> 0;
      // The key joins two different hashes to 64 bits, so that different prompts practically never have the same key.
      this.addRun(versionOf(i));
      if (++this.length % BLOCK_TOKENS > 0) continue;
      blocks.push({ key: `${this.chainA}.${this.chainB}`, runs: this.runs });
      this.runs = [];
    }
    return blocks;
  }

  private addRun(version: string): void {
    const last = this.runs.at(-1);
    if (last?.version === version) this.runs[this.runs.length - 1] = { version, tokens: last.tokens + 1 };
    else this.runs.push({ version, tokens: 1 });
  }
}
