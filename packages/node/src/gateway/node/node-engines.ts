import { isDeepStrictEqual } from 'node:util';
import type { EnginePools } from '@floe-rl/capture';
import { asFloeError, engineIdOf } from '@floe-rl/core';
import type { EngineDirectory, EngineSpec, Heartbeat } from '@floe-rl/core/schema';
import type { Logger } from '@floe-rl/observe';

type Report = NonNullable<Heartbeat['engines']>;

export type NodeEnginesDeps = {
  readonly pool: EnginePools;
  /** The engines in the configuration of the node. The engine pool already contains them. */
  readonly own: readonly EngineSpec[];
  readonly log: Logger;
  /** Called when the result of {@link NodeEngines.report} has changed, apart from its counters. Must not throw. */
  readonly onChange: () => void;
};

/**
 * Applies the engine directory of the rollout server to the engine pools of a node. The directory is the list of engines that are
 * registered at the server.
 */
export class NodeEngines {
  private readonly deps: NodeEnginesDeps;
  /** Engines that are in the pool or still have to be registered in it, by engine id. */
  private readonly specs: Map<string, EngineSpec>;
  private readonly own: ReadonlySet<string>;
  private readonly problems = new Map<string, string>();
  private readonly registering = new Set<string>();
  /** Revision of the newest list of engines that this node has received from the server. */
  private receivedRevision = 0;
  /** Revision of the newest list of engines for which this node has finished all changes. */
  private appliedRevision = 0;
  private policyVersion: string | null = null;
  private pending: Promise<void> = Promise.resolve();

  constructor(deps: NodeEnginesDeps) {
    this.deps = deps;
    this.specs = new Map(deps.own.map((spec) => [idOf(spec), spec]));
    this.own = new Set(this.specs.keys());
  }

  report(): Report {
    return {
      revision: this.appliedRevision,
      heard: this.receivedRevision,
      info: this.deps.pool.info(),
      problems: [...this.problems].map(([engine_id, message]) => ({ engine_id, message })),
      unpaused: this.deps.pool.unpaused.map(({ engineId, message }) => ({ engine_id: engineId, message })),
    };
  }

  /**
   * Applies an engine directory. When this method returns, no new model call reaches an engine that the directory does not list, and no
   * model call starts while the directory pauses the engines. Engines are registered in the background. A directory that is not newer than
   * the last one is ignored.
   */
  apply(directory: EngineDirectory): void {
    if (directory.revision <= this.receivedRevision) return;
    this.receivedRevision = directory.revision;
    this.removeUnlisted(directory);
    for (const spec of directory.engines) this.specs.set(idOf(spec), spec);
    const { policy_version: version } = directory;
    if (version !== null && version !== this.policyVersion) {
      this.policyVersion = version;
      this.deps.pool.setPolicyVersion(version);
    }
    const gate = this.setGate(directory);
    const registered = this.registerMissing();
    this.pending = Promise.all([this.pending, gate, registered]).then(() => {
      this.appliedRevision = Math.max(this.appliedRevision, directory.revision);
      this.deps.onChange();
    });
  }

  /** Retries the registration of the engines that could not be registered. */
  retry(): void {
    if (this.problems.size === 0) return;
    void this.registerMissing().then(() => this.deps.onChange());
  }

  /** Resolves when every engine directory that this node has received is applied. */
  idle(): Promise<void> {
    return this.pending;
  }

  private removeUnlisted({ engines, removed }: EngineDirectory): void {
    const listed = new Map(engines.map((spec) => [idOf(spec), spec]));
    for (const [id, spec] of this.specs) {
      const kept = listed.has(id)
        ? isDeepStrictEqual(listed.get(id), { ...spec, engine_id: id })
        : this.own.has(id) && !removed.includes(id);
      if (kept) continue;
      this.specs.delete(id);
      this.problems.delete(id);
      this.deps.pool.deregister(id);
      if (this.own.has(id) && !listed.has(id)) {
        this.deps.log.warn(
          { engine_id: id },
          'an engine of the node configuration was removed; register it at the server to use it',
        );
      }
    }
  }

  private async setGate({ paused, while_paused }: EngineDirectory): Promise<void> {
    const { pool, log } = this.deps;
    try {
      if (paused !== null) await pool.pause({ mode: paused, whilePaused: while_paused });
      else if (pool.paused !== null) await pool.resume();
    } catch (thrown) {
      // The pool has paused or resumed even if one of its engines did not, so the error is only logged for the operator.
      log.warn({ error: asFloeError(thrown).message }, 'an engine did not pause or resume');
    }
  }

  private async registerMissing(): Promise<void> {
    const { pool } = this.deps;
    const present = new Set(pool.info().map((info) => info.engine_id));
    const missing = [...this.specs].filter(([id]) => !present.has(id) && !this.registering.has(id));
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
      if (this.specs.get(id) === spec) this.problems.set(id, message);
      log.warn({ engine_id: id, code, error: message }, 'an engine could not be registered');
    } finally {
      this.registering.delete(id);
    }
    // An engine directory that arrived during the registration may have removed or changed the engine. The registration is then undone.
    const current = this.specs.get(id);
    if (current === spec) return;
    pool.deregister(id);
    if (current !== undefined) await this.register(id, current);
  }
}

function idOf(spec: EngineSpec): string {
  return spec.engine_id ?? engineIdOf(spec.base_url);
}
