import { hashNumbers, hashText } from './random.ts';

/** Tokens per block, as vLLM's default. */
export const BLOCK_TOKENS = 16;

/** A prompt that was looked up. */
export type CachedSequence = {
  readonly cachedTokens: number;
  /** Stores what was computed behind it. */
  extend(ids: ArrayLike<number>): void;
};

/** A model of an engine's KV prefix cache: chained hashes of full blocks, least recently used first out. */
export class PrefixCache {
  readonly capacity: number;
  private readonly blocks = new Set<string>();

  constructor(capacityBlocks: number) {
    this.capacity = capacityBlocks;
  }

  get size(): number {
    return this.blocks.size;
  }

  /** As {@link begin}, of a prompt whose reply is not stored. */
  admit(promptIds: ArrayLike<number>, salt: string): number {
    return this.begin(promptIds, salt).cachedTokens;
  }

  /**
   * Looks a prompt up and stores it. `cachedTokens` is how many of its leading tokens were there: a multiple of the block
   * size, and never the whole prompt, since an engine computes at least the last token.
   */
  begin(promptIds: ArrayLike<number>, salt: string): CachedSequence {
    const chain = new BlockChain(salt);
    const last = Math.floor((promptIds.length - 1) / BLOCK_TOKENS);
    let hits = 0;
    let intact = true;
    const keys = chain.push(promptIds);
    for (const [block, key] of keys.entries()) {
      intact &&= this.blocks.has(key);
      if (intact && block < last) hits++;
      this.touch(key);
    }
    this.evict();
    return {
      cachedTokens: hits * BLOCK_TOKENS,
      extend: (ids) => {
        for (const key of chain.push(ids)) this.touch(key);
        this.evict();
      },
    };
  }

  clear(): void {
    this.blocks.clear();
  }

  /** Makes a block the latest used. */
  private touch(key: string): void {
    this.blocks.delete(key);
    this.blocks.add(key);
  }

  private evict(): void {
    for (const oldest of this.blocks) {
      if (this.blocks.size <= this.capacity) break;
      this.blocks.delete(oldest);
    }
  }
}

/** Keys of the full blocks of a growing sequence; each depends on the salt and on all tokens before. */
class BlockChain {
  private chainA: number;
  private chainB: number;
  private length = 0;

  constructor(salt: string) {
    this.chainA = hashText(salt);
    this.chainB = hashNumbers(this.chainA, 7);
  }

  /** Keys of the blocks that these tokens complete. */
  push(ids: ArrayLike<number>): string[] {
    const keys: string[] = [];
    for (let i = 0; i < ids.length; i++) {
      this.chainA = hashNumbers(this.chainA, ids[i] as number);
      this.chainB = (Math.imul(this.chainB, 0x01000193) ^ (ids[i] as number)) >>> 0;
      // Two hashes of different kinds: 64 bits, so that two prompts are not taken for one.
      if (++this.length % BLOCK_TOKENS === 0) keys.push(`${this.chainA}.${this.chainB}`);
    }
    return keys;
  }
}
