import { LRUCache } from 'lru-cache';
import { hashNumbers, hashText } from './random.ts';

/** Number of tokens per cache block; vLLM's default. */
export const BLOCK_TOKENS = 16;

/** A sequence in the prefix cache, to which sampled tokens can be added. */
export type CachedSequence = {
  /** Number of leading prompt tokens that were in the cache before this prompt was admitted. */
  readonly cachedTokens: number;
  /** Adds tokens that the engine computed after the prompt to the cache. */
  extend(ids: ArrayLike<number>): void;
};

/**
 * Models an engine's KV prefix cache. It stores hashes of full blocks, each chained to the previous block's hash, and evicts the least
 * recently used block.
 */
export class PrefixCache {
  /** Maximum number of blocks that the cache holds. */
  readonly capacity: number;
  private readonly blocks: LRUCache<string, true>;

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
   * an engine computes at least the last token. Prompts with different salts share no blocks.
   */
  admit(promptIds: ArrayLike<number>, salt: string): CachedSequence {
    const chain = new BlockChain(salt);
    const last = Math.floor((promptIds.length - 1) / BLOCK_TOKENS);
    let hits = 0;
    let intact = true;
    for (const [block, key] of chain.push(promptIds).entries()) {
      intact &&= this.blocks.has(key);
      if (intact && block < last) hits++;
      this.blocks.set(key, true);
    }
    return {
      cachedTokens: hits * BLOCK_TOKENS,
      extend: (ids) => {
        for (const key of chain.push(ids)) this.blocks.set(key, true);
      },
    };
  }

  clear(): void {
    this.blocks.clear();
  }
}

/** Computes the keys of the full blocks of a growing sequence. Each key depends on the salt and on all tokens up to the block's end. */
class BlockChain {
  private chainA: number;
  private chainB: number;
  private length = 0;

  constructor(salt: string) {
    this.chainA = hashText(salt);
    this.chainB = hashNumbers(this.chainA, 7);
  }

  /** Appends tokens and returns the keys of the blocks that they complete. */
  push(ids: ArrayLike<number>): string[] {
    const keys: string[] = [];
    for (let i = 0; i < ids.length; i++) {
      this.chainA = hashNumbers(this.chainA, ids[i] as number);
      this.chainB = (Math.imul(this.chainB, 0x01000193) ^ (ids[i] as number)) >>> 0;
      // The key joins two different hashes to 64 bits, so that different prompts practically never have the same key.
      if (++this.length % BLOCK_TOKENS === 0) keys.push(`${this.chainA}.${this.chainB}`);
    }
    return keys;
  }
}
