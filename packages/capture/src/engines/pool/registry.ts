import { type Clock, engineIdOf, FloeError } from '@floe-rl/core';
import type { EngineInfo, EngineLocality, EnginePolicy, EngineSpec, Place } from '@floe-rl/core/schema';
import type { Engine, EngineNotice } from '../engine.ts';
import { reportsLoad } from '../engine-kinds.ts';
import { choicePolicy } from './choice-policies.ts';
import { isSameSpec, mismatchOf } from './compatibility.ts';
import { EnginePool } from './engine-pool.ts';
import { Member } from './member.ts';

/** A registration during which the connection to the engine is still being opened. */
type Connecting = { readonly spec: EngineSpec; readonly info: Promise<EngineInfo> };

type Connect = (spec: EngineSpec) => Promise<Engine>;

type RegistryDeps = {
  readonly clock: Clock;
  readonly notice: EngineNotice;
  readonly policy: EnginePolicy;
  readonly locality: EngineLocality;
  /**
   * A name or address of this host that identifies local engines, in addition to what the operating system reports; `null` when there is none.
   */
  readonly host: string | null;
  readonly place: Place;
  readonly connect: Connect;
  /** Returns the policy version of the current weights, which is set on engines that are added or reconnected; `null` when unknown. */
  readonly policyVersion: () => string | null;
};

/** The registered engines and their pools. A pool exists as long as it has an engine. */
export class EngineRegistry {
  private readonly deps: RegistryDeps;
  private readonly byId = new Map<string, Member>();
  private readonly pools = new Map<string, EnginePool>();
  private readonly connecting = new Map<string, Connecting>();
  /**
   * Engines that were removed while calls ran on them. An engine whose calls have ended is deleted from this set when the next engine is
   * removed.
   */
  private readonly left = new Set<Member>();
  private closed = false;

  constructor(deps: RegistryDeps) {
    this.deps = deps;
  }

  get members(): readonly Member[] {
    return [...this.byId.values()];
  }

  /** The engines that were removed and on which calls are still running. */
  get leaving(): readonly Member[] {
    return [...this.left].filter(({ inflight }) => inflight > 0);
  }

  membersOf(pool: string): readonly Member[] {
    return this.pools.get(pool)?.engines ?? [];
  }

  /** Returns the pool with this name; `null` when it has no engines. Throws `engine_unavailable` when the registry is closed. */
  poolOf(name: string): EnginePool | null {
    if (this.closed) throw closedError();
    return this.pools.get(name) ?? null;
  }

  /** Connects to an engine and adds it to its pool, as `EnginePools.register` describes. */
  async register(requested: EngineSpec): Promise<EngineInfo> {
    if (this.closed) throw closedError();
    const id = requested.engine_id ?? engineIdOf(requested.base_url);
    const spec = { ...requested, engine_id: id };
    const known = this.byId.get(id)?.spec ?? this.connecting.get(id)?.spec;
    if (known !== undefined && !isSameSpec(known, spec)) throw conflictError(id);
    const member = this.byId.get(id);
    if (member !== undefined) return member.info();
    if (spec.adaptive_concurrency !== null && !reportsLoad(spec.kind)) {
      const message = `adaptive_concurrency: engine ${id} of kind ${spec.kind} does not report its load; set max_concurrency instead`;
      throw new FloeError('unsupported', message, { engine_id: id, field: 'adaptive_concurrency' });
    }
    const connecting = this.connecting.get(id) ?? { spec, info: this.connectAndAdd(spec) };
    this.connecting.set(id, connecting);
    try {
      return await connecting.info;
    } finally {
      if (this.connecting.get(id) === connecting) this.connecting.delete(id);
    }
  }

  /**
   * Adds a connected engine to the pool that `spec` names. `connect` reconnects to the engine for a verification; it is `null` when the
   * engine cannot be reconnected. Throws `engine_error` when the engine does not match the pool's other engines.
   */
  add(engine: Engine, spec: EngineSpec, connect: Connect | null): EngineInfo {
    const info = engine.info();
    for (const other of this.membersOf(spec.pool)) {
      const mismatch = mismatchOf(other.joined, info);
      if (mismatch === null) continue;
      throw new FloeError('engine_error', `engines of pool ${spec.pool} must be alike: ${mismatch}`, {
        engine_id: info.engine_id,
        other_engine_id: other.id,
      });
    }
    const { clock, notice, host, place, policyVersion, policy, locality } = this.deps;
    const onReplaced = (member: Member, error: FloeError): void => this.removeReplaced(member, error);
    const pool = this.poolOf(spec.pool) ?? new EnginePool(choicePolicy(policy, locality), clock);
    const serveWaiters = (): void => pool.serveWaiters();
    const events = { onReplaced, onVerificationEnd: serveWaiters, onLimitChange: serveWaiters };
    const deps = { clock, notice, host, place, policyVersion, connect, ...events };
    const member = new Member(engine, spec, deps);
    const version = policyVersion();
    if (version !== null) engine.setPolicyVersion(version);
    this.byId.set(member.id, member);
    this.pools.set(spec.pool, pool);
    pool.join(member);
    return member.info();
  }

  private async connectAndAdd(spec: EngineSpec & { readonly engine_id: string }): Promise<EngineInfo> {
    const { engine_id: id } = spec;
    const engine = await this.deps.connect(spec);
    try {
      if (this.closed) throw closedError();
      if (this.connecting.get(id)?.spec !== spec) {
        throw new FloeError('cancelled', `engine ${id} was deregistered while it was being connected`, {
          engine_id: id,
        });
      }
      return this.add(engine, spec, this.deps.connect);
    } catch (error) {
      await engine.close();
      throw error;
    }
  }

  /** Removes one engine, or all engines when the id is `null`, as `EnginePools.deregister` describes. Returns the removed ids. */
  deregister(engineId: string | null, abort: boolean): readonly string[] {
    if (engineId === null) this.connecting.clear();
    else this.connecting.delete(engineId);
    const members = this.members.filter(({ id }) => engineId === null || id === engineId);
    this.remove(members, abort);
    return members.map(({ id }) => id);
  }

  async close(): Promise<void> {
    this.closed = true;
    this.connecting.clear();
    const members = [...this.members, ...this.leaving];
    this.byId.clear();
    this.left.clear();
    const pools = [...this.pools.values()];
    this.pools.clear();
    for (const pool of pools) pool.refuseAll(closedError());
    await Promise.all(members.map((member) => member.close()));
  }

  private removeReplaced(member: Member, error: FloeError): void {
    this.remove([member], false);
    this.deps.notice('an engine was removed from its pool because another server replaced it; register it to use it', {
      engine_id: member.id,
      pool: member.spec.pool,
      reason: error.message,
    });
  }

  /**
   * Removes these engines from the registry and their pools. All of them are marked as removed before any pool serves its waiting calls, so
   * that no call is given an engine that is about to be removed.
   */
  private remove(removed: readonly Member[], abort: boolean): void {
    for (const member of this.left) if (member.inflight === 0) this.left.delete(member);
    for (const member of removed) {
      this.byId.delete(member.id);
      if (member.inflight > 0) this.left.add(member);
      member.remove(abort);
    }
    for (const [name, pool] of this.pools) {
      const leaving = removed.filter(({ spec }) => spec.pool === name);
      if (leaving.length > 0) pool.leave(leaving);
      if (pool.engines.length === 0) this.pools.delete(name);
    }
  }
}

function conflictError(id: string): FloeError {
  return new FloeError('conflict', `engine ${id} is registered already, with another specification`, { engine_id: id });
}

function closedError(): FloeError {
  return new FloeError('engine_unavailable', 'the engine pools are closed');
}
