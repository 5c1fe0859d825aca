import { type Clock, raceAbort } from '@floe-rl/core';
import type { OpenToolset } from '../tools/toolset.ts';

/** Time in milliseconds after which a toolset of a group that no session uses is closed. */
const GROUP_IDLE_MS = 60_000;

type Entry = {
  /** Settles when the session that had the toolset last has returned it. */
  free: Promise<void>;
  /** Number of sessions that have the toolset or wait for it. */
  users: number;
  opened: OpenToolset | null;
  cancelClose: () => void;
};

/** Which kept toolset a session uses, and how long it is kept. */
export type PoolKey = {
  /** Equal for the sessions that share the toolset. */
  readonly key: string;
  readonly scope: 'group' | 'node';
};

/** A toolset that one session has for itself until it returns it. */
export type Loan = { readonly toolset: OpenToolset; release(): void };

/**
 * The toolsets of a process that are kept open between sessions. One session at a time has a toolset. It is reset before the next session gets
 * it. A toolset without `reset`, or whose reset fails, is closed and opened once more. Toolsets of a group are closed when no session has used
 * them for a minute. All toolsets are closed when the process ends.
 */
export class ToolsetPool {
  private readonly clock: Clock;
  private readonly entries = new Map<string, Entry>();

  constructor(clock: Clock) {
    this.clock = clock;
  }

  /**
   * Waits until the toolset is free, and opens or resets it. Sessions that take several must take them in the order of their keys. Rejects as
   * `open`, or with the reason of `signal`.
   */
  async take({ key, scope }: PoolKey, open: () => Promise<OpenToolset>, signal: AbortSignal): Promise<Loan> {
    const entry = this.entryOf(key);
    entry.cancelClose();
    entry.users++;
    const before = entry.free;
    let release = (): void => {};
    entry.free = new Promise((resolve) => {
      release = () => {
        entry.users--;
        if (entry.users === 0 && scope === 'group') this.closeLater(key, entry);
        resolve();
      };
    });
    try {
      await raceAbort(before, signal);
      entry.opened =
        entry.opened === null ? await open() : await renewed(entry.opened, open, () => (entry.opened = null));
      return { toolset: entry.opened, release };
    } catch (error) {
      // A session that no longer waits must not let the next session in before the toolset is free.
      void before.then(release);
      throw error;
    }
  }

  /** Closes all toolsets. Never rejects. */
  async close(): Promise<void> {
    const all = [...this.entries.values()];
    this.entries.clear();
    await Promise.all(
      all.map(async ({ opened, cancelClose }) => {
        cancelClose();
        await closed(opened);
      }),
    );
  }

  private entryOf(key: string): Entry {
    const known = this.entries.get(key);
    if (known !== undefined) return known;
    const entry: Entry = { free: Promise.resolve(), users: 0, opened: null, cancelClose: () => {} };
    this.entries.set(key, entry);
    return entry;
  }

  private closeLater(key: string, entry: Entry): void {
    entry.cancelClose = this.clock.schedule(GROUP_IDLE_MS, () => {
      this.entries.delete(key);
      void closed(entry.opened);
    });
  }
}

/** Resets a toolset for the next session, or closes it and opens another. */
async function renewed(
  toolset: OpenToolset,
  open: () => Promise<OpenToolset>,
  forget: () => void,
): Promise<OpenToolset> {
  try {
    if (toolset.reset !== undefined) {
      await toolset.reset();
      return toolset;
    }
  } catch {
    // What a failed reset has left cannot be used.
  }
  forget();
  await closed(toolset);
  return open();
}

async function closed(toolset: OpenToolset | null): Promise<void> {
  await toolset?.close?.().catch(() => {});
}
