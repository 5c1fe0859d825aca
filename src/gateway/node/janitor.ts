import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { Clock } from '../../core/clock.ts';
import { asFloeError } from '../../core/errors.ts';
import { removeTree } from '../../core/remove-tree.ts';
import type { Logger } from '../../observe/log.ts';
import { endOwned, labelledProcesses } from '../../runtimes/processes/orphans.ts';
import { HELPER_NAME, type Owner } from '../../runtimes/processes/owner.ts';

/** Looking reads the environment of every process of the host, so it is done seldom. */
const ROUND_MS = 30_000;
/** A sandbox without an attempt is given this long to be torn down in the ordinary way. */
const IDLE_TTL_MS = 60_000;

export type JanitorDeps = {
  readonly clock: Clock;
  readonly log: Logger;
  readonly owner: Owner;
  readonly sessionsDir: string;
  /** Names of sandboxes that may exist. */
  readonly wanted: () => ReadonlySet<string>;
  readonly onLeaked: (count: number) => void;
};

/** The backstop of a running gateway: ends sandboxes whose attempt does not exist any more. There should be none. */
export class Janitor {
  private readonly deps: JanitorDeps;
  /** When a sandbox that nobody wants was first seen. */
  private readonly idleSince = new Map<string, number>();
  private cancel: () => void = () => {};
  private round: Promise<void> = Promise.resolve();
  private closed = false;

  constructor(deps: JanitorDeps) {
    this.deps = deps;
  }

  start(): void {
    if (this.closed) return;
    this.cancel = this.deps.clock.schedule(ROUND_MS, () => {
      this.round = this.sweep()
        .catch((error: unknown) => {
          this.deps.log.warn({ error: asFloeError(error).message }, 'sandboxes could not be looked at');
        })
        .finally(() => this.start());
    });
  }

  async close(): Promise<void> {
    this.closed = true;
    this.cancel();
    await this.round;
  }

  /** One round. */
  async sweep(): Promise<void> {
    const { clock, wanted } = this.deps;
    const found = await this.found();
    const keep = wanted();
    const nowMs = clock.monotonicMs();
    for (const name of this.idleSince.keys()) if (!found.has(name) || keep.has(name)) this.idleSince.delete(name);
    const late: string[] = [];
    for (const name of found) {
      if (keep.has(name)) continue;
      const sinceMs = this.idleSince.get(name) ?? nowMs;
      this.idleSince.set(name, sinceMs);
      if (nowMs - sinceMs >= IDLE_TTL_MS) late.push(name);
    }
    await Promise.all(late.map((name) => this.reap(name)));
  }

  private async found(): Promise<Set<string>> {
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
    const ended = await endOwned(owner.id, (found) => found.name === name, clock);
    for (const backend of await readdir(sessionsDir)) await removeTree(join(sessionsDir, backend, name));
    this.idleSince.delete(name);
    log.warn({ sandbox: name, ...ended }, 'ended a sandbox whose attempt does not exist any more');
    onLeaked(1);
  }
}
