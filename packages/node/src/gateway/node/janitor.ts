import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { asFloeError, type Clock, removeTree } from '@floe-rl/core';
import type { Logger } from '@floe-rl/observe';
import { endOwned, HELPER_NAME, labelledProcesses, type Owner } from '@floe-rl/sandbox';

/** Interval between two searches for leaked sandboxes. A search reads the environment of every process of the host, so it is rare. */
const SWEEP_INTERVAL_MS = 30_000;
/** Time after which a sandbox without a live attempt is ended. An ordinary teardown takes less. */
const LEAKED_AFTER_MS = 60_000;

export type JanitorDeps = {
  readonly clock: Clock;
  readonly log: Logger;
  readonly owner: Owner;
  readonly sessionsDir: string;
  /** Returns the names of the sandboxes that live attempts may have started. */
  readonly expectedNames: () => ReadonlySet<string>;
  readonly onLeaked: (count: number) => void;
};

/** Ends leaked sandboxes of a running gateway. A sandbox is leaked when its attempt no longer exists. Normally there are none. */
export class Janitor {
  private readonly deps: JanitorDeps;
  /** Monotonic time at which each sandbox without a live attempt was first found, by sandbox name. */
  private readonly unexpectedSinceMs = new Map<string, number>();
  private cancel: () => void = () => {};
  private sweeping: Promise<void> = Promise.resolve();
  private closed = false;

  constructor(deps: JanitorDeps) {
    this.deps = deps;
  }

  start(): void {
    if (this.closed) return;
    this.cancel = this.deps.clock.schedule(SWEEP_INTERVAL_MS, () => {
      this.sweeping = this.sweep()
        .catch((error: unknown) => {
          this.deps.log.warn(
            { error: asFloeError(error).message },
            'the search for leaked sandboxes failed; it is retried',
          );
        })
        .finally(() => this.start());
    });
  }

  async close(): Promise<void> {
    this.closed = true;
    this.cancel();
    await this.sweeping;
  }

  /** Ends the sandboxes that have had no live attempt for {@link LEAKED_AFTER_MS}. */
  async sweep(): Promise<void> {
    const { clock, expectedNames } = this.deps;
    const found = await this.sandboxNames();
    const expected = expectedNames();
    const nowMs = clock.monotonicMs();
    for (const name of this.unexpectedSinceMs.keys()) {
      if (!found.has(name) || expected.has(name)) this.unexpectedSinceMs.delete(name);
    }
    const leaked: string[] = [];
    for (const name of found) {
      if (expected.has(name)) continue;
      const sinceMs = this.unexpectedSinceMs.get(name) ?? nowMs;
      this.unexpectedSinceMs.set(name, sinceMs);
      if (nowMs - sinceMs >= LEAKED_AFTER_MS) leaked.push(name);
    }
    await Promise.all(leaked.map((name) => this.reap(name)));
  }

  /** Returns the names of all sandboxes of this gateway that have a process or a directory. */
  private async sandboxNames(): Promise<Set<string>> {
    const { owner, sessionsDir } = this.deps;
    const names = new Set<string>();
    for (const { label } of await labelledProcesses(owner.id)) if (label.name !== HELPER_NAME) names.add(label.name);
    for (const backend of await readdir(sessionsDir)) {
      for (const name of await readdir(join(sessionsDir, backend))) if (!name.startsWith('.')) names.add(name);
    }
    return names;
  }

  private async reap(name: string): Promise<void> {
    const { owner, clock, log, sessionsDir, onLeaked } = this.deps;
    const ended = await endOwned(owner.id, (sandbox) => sandbox.name === name, clock);
    for (const backend of await readdir(sessionsDir)) await removeTree(join(sessionsDir, backend, name));
    this.unexpectedSinceMs.delete(name);
    log.warn({ sandbox: name, ...ended }, 'ended a leaked sandbox, whose attempt no longer exists');
    onLeaked(1);
  }
}
