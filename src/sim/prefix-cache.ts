import { hashNumbers, hashText } from './random.ts';

/** Tokens per block, as vLLM's default. */
export const BLOCK_TOKENS = 16;

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

  /**
   * Looks a prompt up and stores it. Returns how many of its leading tokens were there: a multiple of the block size,
   * and never the whole prompt, since an engine computes at least the last token.
   */
  admit(promptIds: ArrayLike<number>, salt: string): number {
    let chainA = hashText(salt);
    let chainB = hashNumbers(chainA, 7);
    let hits = 0;
    let intact = true;
    const last = Math.floor((promptIds.length - 1) / BLOCK_TOKENS);
    for (let block = 0; (block + 1) * BLOCK_TOKENS <= promptIds.length; block++) {
      for (let i = block * BLOCK_TOKENS; i < (block + 1) * BLOCK_TOKENS; i++) {
        chainA = hashNumbers(chainA, promptIds[i] as number);
        chainB = (Math.imul(chainB, 0x01000193) ^ (promptIds[i] as number)) >>> 0;
      }
      // Two hashes of different kinds: 64 bits, so that two prompts are not taken for one.
      const key = `${chainA}.${chainB}`;
      intact &&= this.blocks.delete(key);
      if (intact && block < last) hits++;
      this.blocks.delete(key);
      this.blocks.add(key);
    }
    for (const oldest of this.blocks) {
      if (this.blocks.size <= this.capacity) break;
      this.blocks.delete(oldest);
    }
    return hits * BLOCK_TOKENS;
  }

  clear(): void {
    this.blocks.clear();
  }
}
