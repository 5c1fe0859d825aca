import { raceAbort } from '@floe-rl/core';
import type { Runtime, RuntimeSnapshot } from '@floe-rl/sandbox';

/** Maximum number of remembered keys whose files are too large to keep. */
const MAX_REFUSED = 1_000;

export type PreparedOptions = {
  /** Maximum number of snapshots that are kept; 0 for none. */
  readonly maxCount: number;
  /** Maximum number of bytes of all kept snapshots together. */
  readonly maxBytes: number;
  /** Counts sandboxes by how they got their prepared files. Must not throw. */
  readonly onStart?: ((how: PreparedStart) => void) | undefined;
};

/**
 * How a sandbox got its prepared files. `kept`: its actions were run, and a snapshot was kept. `alone`: its actions were run for this sandbox
 * only. `reused`: it was started from a snapshot.
 */
export type PreparedStart = 'kept' | 'alone' | 'reused';

export type PreparedWork = {
  /** Starts a sandbox and runs its prepare actions. */
  readonly prepare: () => Promise<Runtime>;
  /** Starts a sandbox from a snapshot. */
  readonly reuse: (snapshot: RuntimeSnapshot) => Promise<Runtime>;
  /** Called before the start waits until another sandbox is prepared. */
  readonly onWait: () => void;
};

type Kept = { readonly snapshot: RuntimeSnapshot; users: number; isDropped: boolean };

/**
 * Snapshots of prepared sandboxes. Other sandboxes with the same preparation are started from them. When there are too many, the least
 * recently used snapshots are released.
 */
export class PreparedSnapshots {
  private readonly options: PreparedOptions;
  /** By the key of the preparation; the least recently used one is first. */
  private readonly kept = new Map<string, Kept>();
  /** Preparations that are running. Settles when the snapshot is kept or will not be. */
  private readonly running = new Map<string, Promise<void>>();
  private readonly refused = new Set<string>();
  private isClosed = false;

  constructor(options: PreparedOptions) {
    this.options = options;
  }

  /** Names of the sandboxes that snapshots were taken from. Processes with these names may exist although the sandboxes were stopped. */
  get sandboxes(): string[] {
    return [...this.kept.values()].map(({ snapshot }) => snapshot.sandbox);
  }

  /**
   * Starts a sandbox that is prepared. The first sandbox for a key is prepared while others wait, and the others are started from its
   * snapshot. If the preparation of the first fails, each sandbox that waited for it is prepared. Rejects like `work`.
   */
  async start(key: string, work: PreparedWork, signal: AbortSignal): Promise<Runtime> {
    const reused = await this.reuse(key, work, signal);
    if (reused !== null) return reused;
    const other = this.running.get(key);
    if (other !== undefined) {
      work.onWait();
      await raceAbort(other, signal);
      const runtime = await this.reuse(key, work, signal);
      if (runtime !== null) return runtime;
    }
    if (this.isClosed || this.options.maxCount === 0 || this.refused.has(key) || this.running.has(key)) {
      return this.startAlone(work);
    }
    return this.prepareFirst(key, work, signal);
  }

  /** Releases all snapshots and keeps no further ones. */
  async close(): Promise<void> {
    this.isClosed = true;
    await Promise.all(this.running.values());
    await Promise.all([...this.kept.keys()].map((key) => this.drop(key)));
  }

  private async startAlone(work: PreparedWork): Promise<Runtime> {
    const runtime = await work.prepare();
    this.options.onStart?.('alone');
    return runtime;
  }

  /** Starts a sandbox from the kept snapshot. Resolves with `null` when there is none, or when no sandbox can be started from it. */
  private async reuse(key: string, work: PreparedWork, signal: AbortSignal): Promise<Runtime | null> {
    const found = this.kept.get(key);
    if (found === undefined) return null;
    this.kept.delete(key);
    this.kept.set(key, found);
    found.users += 1;
    try {
      const runtime = await work.reuse(found.snapshot);
      this.options.onStart?.('reused');
      return runtime;
    } catch {
      signal.throwIfAborted();
      // The image may have changed, or the spawn helper may have died. For any other reason, the following preparation rejects too.
      if (this.kept.get(key) === found) await this.drop(key);
      return null;
    } finally {
      found.users -= 1;
      if (found.isDropped && found.users === 0) await found.snapshot.release();
    }
  }

  private async prepareFirst(key: string, work: PreparedWork, signal: AbortSignal): Promise<Runtime> {
    let settle = (): void => {};
    this.running.set(
      key,
      new Promise((resolve) => {
        settle = resolve;
      }),
    );
    let runtime: Runtime | null = null;
    try {
      runtime = await work.prepare();
      const isKept = await this.keep(key, runtime, signal);
      this.options.onStart?.(isKept ? 'kept' : 'alone');
      return runtime;
    } catch (error) {
      await runtime?.stop();
      throw error;
    } finally {
      this.running.delete(key);
      settle();
    }
  }

  /** Keeps a snapshot of a prepared sandbox. Resolves with false when it is too large, or when none can be taken: the sandbox is usable then. */
  private async keep(key: string, runtime: Runtime, signal: AbortSignal): Promise<boolean> {
    const snapshot = await runtime.snapshot(signal).catch(() => null);
    if (snapshot === null || signal.aborted) {
      await snapshot?.release();
      signal.throwIfAborted();
      return false;
    }
    const { maxBytes, maxCount } = this.options;
    if (this.isClosed || snapshot.bytes > maxBytes) {
      if (this.refused.size < MAX_REFUSED) this.refused.add(key);
      await snapshot.release();
      return false;
    }
    this.kept.set(key, { snapshot, users: 0, isDropped: false });
    const size = (): number => [...this.kept.values()].reduce((sum, each) => sum + each.snapshot.bytes, 0);
    for (const oldest of [...this.kept.keys()]) {
      if (this.kept.size <= maxCount && size() <= maxBytes) break;
      await this.drop(oldest);
    }
    return true;
  }

  private async drop(key: string): Promise<void> {
    const dropped = this.kept.get(key);
    if (dropped === undefined) return;
    this.kept.delete(key);
    dropped.isDropped = true;
    if (dropped.users === 0) await dropped.snapshot.release();
  }
}
