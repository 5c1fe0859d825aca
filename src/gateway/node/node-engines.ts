import { isDeepStrictEqual } from 'node:util';
import { asFloeError } from '../../core/errors.ts';
import { engineIdOf } from '../../core/ids.ts';
import type { EnginePool } from '../../engines/pool.ts';
import type { Logger } from '../../observe/log.ts';
import type { EngineDirectory, EngineSpec, Heartbeat } from '../../schema/index.ts';

type Report = NonNullable<Heartbeat['engines']>;

export type NodeEnginesDeps = {
  readonly pool: EnginePool;
  /** Engines of the node's own configuration; the pool has them already. */
  readonly own: readonly EngineSpec[];
  readonly log: Logger;
  /** Called when the report has changed otherwise than by time. Must not throw. */
  readonly onChange: () => void;
};

/** Keeps a node's engine pool as the server's directory says. */
export class NodeEngines {
  private readonly deps: NodeEnginesDeps;
  /** What the pool holds or is about to, by id. */
  private readonly wanted: Map<string, EngineSpec>;
  private readonly own: ReadonlySet<string>;
  private readonly problems = new Map<string, string>();
  private readonly registering = new Set<string>();
  private heard = 0;
  private carriedOut = 0;
  private policyVersion: string | null = null;
  private steps: Promise<void> = Promise.resolve();

  constructor(deps: NodeEnginesDeps) {
    this.deps = deps;
    this.wanted = new Map(deps.own.map((spec) => [idOf(spec), spec]));
    this.own = new Set(this.wanted.keys());
  }

  report(): Report {
    return {
      revision: this.carriedOut,
      heard: this.heard,
      info: this.deps.pool.info(),
      problems: [...this.problems].map(([engine_id, message]) => ({ engine_id, message })),
    };
  }

  /**
   * Carries a directory out. From when this returns on, no call reaches an engine that it no longer has, and while it says so none
   * passes the gate; what takes longer goes on by itself. An older directory than the last is ignored.
   */
  apply(directory: EngineDirectory): void {
    if (directory.revision <= this.heard) return;
    this.heard = directory.revision;
    this.removeUnlisted(directory);
    for (const spec of directory.engines) this.wanted.set(idOf(spec), spec);
    const { policy_version: version } = directory;
    if (version !== null && version !== this.policyVersion) {
      this.policyVersion = version;
      this.deps.pool.setPolicyVersion(version);
    }
    const gate = this.setGate(directory);
    const registered = this.registerMissing();
    this.steps = Promise.all([this.steps, gate, registered]).then(() => {
      this.carriedOut = Math.max(this.carriedOut, directory.revision);
      this.deps.onChange();
    });
  }

  /** Tries the engines once more that could not be registered. */
  retry(): void {
    if (this.problems.size === 0) return;
    void this.registerMissing().then(() => this.deps.onChange());
  }

  /** Resolves when everything that was asked for so far has been tried. */
  idle(): Promise<void> {
    return this.steps;
  }

  private removeUnlisted({ engines, removed }: EngineDirectory): void {
    const listed = new Map(engines.map((spec) => [idOf(spec), spec]));
    for (const [id, spec] of this.wanted) {
      const kept = listed.has(id)
        ? isDeepStrictEqual(listed.get(id), { ...spec, engine_id: id })
        : this.own.has(id) && !removed.includes(id);
      if (kept) continue;
      this.wanted.delete(id);
      this.problems.delete(id);
      this.deps.pool.deregister(id);
      if (this.own.has(id) && !listed.has(id)) {
        this.deps.log.warn({ engine_id: id }, 'an engine of this node was removed; register it to use it again');
      }
    }
  }

  private async setGate({ paused, while_paused }: EngineDirectory): Promise<void> {
    const { pool, log } = this.deps;
    try {
      if (paused !== null) await pool.pause({ mode: paused, whilePaused: while_paused });
      else if (pool.paused !== null) await pool.resume();
    } catch (thrown) {
      // floe's own gate is closed or open all the same; what an engine did not take is the operator's to know.
      log.warn({ error: asFloeError(thrown).message }, 'an engine did not take a pause or resume');
    }
  }

  private async registerMissing(): Promise<void> {
    const { pool } = this.deps;
    const present = new Set(pool.info().map((info) => info.engine_id));
    const missing = [...this.wanted].filter(([id]) => !present.has(id) && !this.registering.has(id));
    await Promise.all(missing.map(([id, spec]) => this.register(id, spec)));
  }

  private async register(id: string, spec: EngineSpec): Promise<void> {
    const { pool, log } = this.deps;
    this.registering.add(id);
    try {
      await pool.register({ ...spec, engine_id: id });
      this.problems.delete(id);
    } catch (thrown) {
      const { code, message } = asFloeError(thrown);
      if (this.wanted.get(id) === spec) this.problems.set(id, message);
      log.warn({ engine_id: id, code, error: message }, 'an engine could not be registered');
    } finally {
      this.registering.delete(id);
    }
    // It may have been removed, or changed, while it was being asked what it can do.
    const now = this.wanted.get(id);
    if (now === spec) return;
    pool.deregister(id);
    if (now !== undefined) await this.register(id, now);
  }
}

function idOf(spec: EngineSpec): string {
  return spec.engine_id ?? engineIdOf(spec.base_url);
}
