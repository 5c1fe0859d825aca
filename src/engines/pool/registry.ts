import { FloeError } from '../../core/errors.ts';
import { engineIdOf } from '../../core/ids.ts';
import type { EngineInfo, EngineLocality, EnginePolicy, EngineSpec } from '../../schema/index.ts';
import type { Engine } from '../engine.ts';
import { choicePolicy } from './choice.ts';
import { mismatchOf, sameSpec } from './identity.ts';
import { Member, type MemberDeps } from './member.ts';
import { SlotQueue } from './slot-queue.ts';

/** An engine that is being connected to. */
type Joining = { readonly spec: EngineSpec; readonly info: Promise<EngineInfo> };

type Connect = NonNullable<MemberDeps['connect']>;

export type RegistryDeps = Omit<MemberDeps, 'onReplaced' | 'connect'> & {
  readonly policy: EnginePolicy;
  readonly locality: EngineLocality;
  readonly connect: Connect;
};

/** Which engines there are, in which pool. */
export class EngineRegistry {
  private readonly deps: RegistryDeps;
  private readonly byId = new Map<string, Member>();
  private readonly queues = new Map<string, SlotQueue>();
  private readonly joining = new Map<string, Joining>();
  private closed = false;

  constructor(deps: RegistryDeps) {
    this.deps = deps;
  }

  get members(): readonly Member[] {
    return [...this.byId.values()];
  }

  membersOf(pool: string): readonly Member[] {
    return this.queues.get(pool)?.engines ?? [];
  }

  /** Throws `engine_unavailable` when the registry is closed. */
  queueOf(pool: string): SlotQueue {
    if (this.closed) throw closedError();
    // One without engines lets nobody wait, so that it need not be remembered.
    return this.queues.get(pool) ?? new SlotQueue(choicePolicy(this.deps.policy, this.deps.locality), this.deps.clock);
  }

  /** See `EnginePool.register`. */
  async register(asked: EngineSpec): Promise<EngineInfo> {
    if (this.closed) throw closedError();
    const id = asked.engine_id ?? engineIdOf(asked.base_url);
    const spec = { ...asked, engine_id: id };
    const known = this.byId.get(id)?.spec ?? this.joining.get(id)?.spec;
    if (known !== undefined && !sameSpec(known, spec)) throw conflict(id);
    const member = this.byId.get(id);
    if (member !== undefined) return member.info();
    const joining = this.joining.get(id) ?? { spec, info: this.join(spec) };
    this.joining.set(id, joining);
    try {
      return await joining.info;
    } finally {
      if (this.joining.get(id) === joining) this.joining.delete(id);
    }
  }

  /**
   * Takes in an engine that is connected. `connect` is how to look at it anew; null: it cannot be. Throws `engine_error` when it does
   * not fit its pool.
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
    const onReplaced = (member: Member, error: FloeError): void => this.takeOut(member, error);
    const member = new Member(engine, spec, { ...this.deps, connect, onReplaced });
    const version = this.deps.policyVersion();
    if (version !== null) engine.setPolicyVersion(version);
    const queue = this.queueOf(spec.pool);
    this.byId.set(member.id, member);
    this.queues.set(spec.pool, queue);
    queue.join(member);
    return member.info();
  }

  private async join(spec: EngineSpec & { readonly engine_id: string }): Promise<EngineInfo> {
    const { engine_id: id } = spec;
    const engine = await this.deps.connect(spec);
    try {
      if (this.closed) throw closedError();
      if (this.joining.get(id)?.spec !== spec) {
        throw new FloeError('cancelled', `engine ${id} was deregistered while it was connected to`, { engine_id: id });
      }
      return this.add(engine, spec, this.deps.connect);
    } catch (error) {
      await engine.close();
      throw error;
    }
  }

  /** See `EnginePool.deregister`. */
  deregister(engineId: string | null, abort: boolean): readonly string[] {
    if (engineId === null) this.joining.clear();
    else this.joining.delete(engineId);
    const gone = this.members.filter(({ id }) => engineId === null || id === engineId);
    this.remove(gone, abort);
    return gone.map(({ id }) => id);
  }

  async close(): Promise<void> {
    this.closed = true;
    this.joining.clear();
    const { members } = this;
    this.byId.clear();
    const queues = [...this.queues.values()];
    this.queues.clear();
    for (const queue of queues) queue.refuseAll(closedError());
    await Promise.all(members.map((member) => member.close()));
  }

  private takeOut(member: Member, error: FloeError): void {
    this.remove([member], false);
    this.deps.notice('an engine was taken out of its pool; register it again to use it as what it is now', {
      engine_id: member.id,
      pool: member.spec.pool,
      reason: error.message,
    });
  }

  /** All at once: who waits and looks again must not get one that is about to go. */
  private remove(gone: readonly Member[], abort: boolean): void {
    for (const member of gone) {
      this.byId.delete(member.id);
      member.remove(abort);
    }
    for (const [pool, queue] of this.queues) {
      const leaving = gone.filter(({ spec }) => spec.pool === pool);
      if (leaving.length > 0) queue.leave(leaving);
      if (queue.engines.length === 0) this.queues.delete(pool);
    }
  }
}

function conflict(id: string): FloeError {
  return new FloeError('conflict', `engine ${id} is registered already, with another specification`, { engine_id: id });
}

function closedError(): FloeError {
  return new FloeError('engine_unavailable', 'the engine pool is closed');
}
