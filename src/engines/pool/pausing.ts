import type { Clock } from '../../core/clock.ts';
import { asFloeError, FloeError } from '../../core/errors.ts';
import type { PauseMode } from '../../schema/index.ts';
import type { EngineNotice } from '../engine.ts';
import type { PauseOptions } from '../pool.ts';
import { withDeadline } from './deadline.ts';
import type { Gate } from './gate.ts';
import { CONTROL_MS, type Member } from './member.ts';

export type PausingDeps = {
  readonly clock: Clock;
  readonly notice: EngineNotice;
  readonly gate: Gate;
  readonly members: () => readonly Member[];
};

/** Pauses and resumes all engines, one order after the other. */
export class Pausing {
  private readonly deps: PausingDeps;
  /** Told to pause, and not yet to go on. */
  private readonly told = new Set<Member>();
  private orders: Promise<unknown> = Promise.resolve();
  private pauses = 0;

  constructor(deps: PausingDeps) {
    this.deps = deps;
  }

  get paused(): PauseMode | null {
    return this.deps.gate.closed?.mode ?? null;
  }

  /** The gate is closed when this returns. Rejects with `engine_error` when an engine refused, after all have been told; the gate stays closed. */
  pause(options: PauseOptions): Promise<void> {
    this.pauses++;
    this.deps.gate.close(options);
    return this.inOrder(async () => {
      await this.tell('pause', this.deps.members(), (member) => this.pauseOne(member, options.mode));
    });
  }

  /** The gate opens when all have been told, unless another pause has begun. Rejects with `engine_error` when an engine refused; it is not used until it goes on. */
  resume(): Promise<void> {
    const pauses = this.pauses;
    return this.inOrder(async () => {
      try {
        await this.tell('resume', [...this.told], (member) => this.resumeOne(member));
      } finally {
        if (this.pauses === pauses) this.deps.gate.open();
      }
    });
  }

  private inOrder(work: () => Promise<void>): Promise<void> {
    const done = this.orders.then(work);
    this.orders = done.catch(() => {});
    return done;
  }

  /** An engine that cannot be reached samples nothing for us; that is no reason to refuse an update of the others. */
  private async tell(
    verb: 'pause' | 'resume',
    members: readonly Member[],
    order: (member: Member) => Promise<void>,
  ): Promise<void> {
    const refusals: FloeError[] = [];
    const one = async (member: Member): Promise<void> => {
      try {
        await order(member);
      } catch (thrown) {
        const error = asFloeError(thrown, 'engine_error');
        if (error.code !== 'engine_unavailable') refusals.push(error);
        this.deps.notice(`an engine could not be told to ${verb}`, { engine_id: member.id, reason: error.message });
      }
    };
    await Promise.all(members.map(one));
    const [first] = refusals;
    if (first === undefined) return;
    const reasons = refusals.map(({ message }) => message).join('; ');
    throw new FloeError('engine_error', `not every engine did ${verb}: ${reasons}`, first.details, first);
  }

  private async pauseOne(member: Member, mode: PauseMode): Promise<void> {
    const { clock, notice } = this.deps;
    if (!member.engine.info().capabilities.pause) {
      if (member.inflight === 0) return;
      notice('an engine cannot be paused; its calls under way are left to end by themselves', {
        engine_id: member.id,
        inflight: member.inflight,
      });
      return;
    }
    this.told.add(member);
    member.pausedAnew();
    await withDeadline(clock, CONTROL_MS, `pausing engine ${member.id}`, (signal) => member.engine.pause(mode, signal));
  }

  private async resumeOne(member: Member): Promise<void> {
    this.told.delete(member);
    if (member.gone) return;
    try {
      await withDeadline(this.deps.clock, CONTROL_MS, `resuming engine ${member.id}`, (signal) =>
        member.engine.resume(signal),
      );
    } catch (error) {
      member.leftPaused();
      throw error;
    }
  }
}
