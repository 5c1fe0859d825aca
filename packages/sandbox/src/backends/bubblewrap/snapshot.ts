import { statfs } from 'node:fs/promises';
import type { RuntimeSnapshot } from '../../api/runtime.ts';
import { bases, endHolder, type Holder } from './holder.ts';

/** Files of a sandbox that are no longer written to. The holder process of their namespaces keeps them. */
export class BubblewrapSnapshot implements RuntimeSnapshot {
  readonly backend = 'bubblewrap';
  readonly sandbox: string;
  readonly bytes: number;
  readonly holder: Holder;
  /** User id on the host to which the files belong. */
  readonly uid: number;
  /** Directory of the image on the host; `null` without an image. */
  readonly imagePath: string | null;
  private released: Promise<void> | null = null;

  constructor(parts: Pick<BubblewrapSnapshot, 'sandbox' | 'bytes' | 'holder' | 'uid' | 'imagePath'>) {
    this.sandbox = parts.sandbox;
    this.bytes = parts.bytes;
    this.holder = parts.holder;
    this.uid = parts.uid;
    this.imagePath = parts.imagePath;
  }

  get isReleased(): boolean {
    return this.released !== null;
  }

  release(): Promise<void> {
    this.released ??= endHolder(this.holder.process);
    return this.released;
  }
}

/**
 * Returns the number of bytes of memory that the files of a holder process's session use, including the frozen sessions on which it is based.
 */
export async function usedBytes({ process, layout }: Holder): Promise<number> {
  let total = 0;
  for (const path of bases(layout)) {
    const { blocks, bfree, bsize } = await statfs(`/proc/${process.pid}/root${path}`);
    total += (blocks - bfree) * bsize;
  }
  return total;
}
