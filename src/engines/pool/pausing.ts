import { onAbort } from '../../core/abort.ts';
import { asFloeError, FloeError } from '../../core/errors.ts';
import type { PauseMode } from '../../schema/index.ts';
import type { EngineNotice } from '../engine.ts';
import type { PauseOptions } from './engine-pools.ts';
import type { Member } from './member.ts';

/**
 * Time after which a caller that was rejected during a pause should retry. Weight updates take seconds; a harness that retries sooner
 * only uses up its retries.
 */
const RETRY_AFTER_MS = 2_000;

/** Gate that every new sampling call passes. It is closed while the engines are paused. */
export class PauseGate {
  private options: PauseOptions | null = null;
  private waiters = new Set<() => void>();

  /** The options of the pause in effect; `null` when the gate is open. */
  get closed(): PauseOptions | null {
    return this.options;
  }

  close(options: PauseOptions): void {
    this.options = options;
    // Wakes the waiting calls, so that they check the new options, which may reject them.
    this.wakeAll();
  }

  open(): void {
    this.options = null;
    this.wakeAll();
  }

  /** Resolves when the gate is open. Rejects with `overloaded` when the current pause rejects calls, or with the signal's reason. */
  async pass(signal: AbortSignal): Promise<void> {
    while (this.options !== null) {
      if (this.options.whilePaused === 'reject') {
        throw new FloeError('overloaded', 'the engines are paused for a weight update; try again', {
          paused: true,
          retry_after_ms: RETRY_AFTER_MS,
        });
      }
      await this.nextChange(signal);
    }
  }

  /**
   * Resolves when the gate is open, for a call that has passed the gate before: it waits even when new calls are rejected. Rejects with
   * the signal's reason.
   */
  async waitUntilOpen(signal: AbortSignal): Promise<void> {
    while (this.options !== null) await this.nextChange(signal);
  }

  private wakeAll(): void {
    const waiters = this.waiters;
    this.waiters = new Set();
    for (const wake of waiters) wake();
  }

  private nextChange(signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      if (signal.aborted) return reject(signal.reason);
      const wake = (): void => {
        release();
        resolve();
      };
      const release = onAbort(signal, () => {
        this.waiters.delete(wake);
        reject(signal.reason);
      });
      this.waiters.add(wake);
    });
  }
}

type PausingDeps = {
  readonly notice: EngineNotice;
  readonly gate: PauseGate;
  readonly members: () => readonly Member[];
};

/** Pauses and resumes all engines. Pauses and resumes run one after the other, in the order in which they were requested. */
export class Pausing {
  private readonly deps: PausingDeps;
  /** Engines to which a pause was sent and not yet the following resume. */
  private readonly pausedMembers = new Set<Member>();
  private lastOrder: Promise<unknown> = Promise.resolve();
  private pauseCount = 0;

  constructor(deps: PausingDeps) {
    this.deps = deps;
  }

  get paused(): PauseMode | null {
    return this.deps.gate.closed?.mode ?? null;
  }

  /**
   * Pauses all engines. Closes the gate before it returns, and resolves when every engine has answered. Rejects with `engine_error` when
   * an engine refused; the gate stays closed then.
   */
  pause(options: PauseOptions): Promise<void> {
    this.pauseCount++;
    this.deps.gate.close(options);
    return this.inOrder(async () => {
      await this.sendAll('pause', this.deps.members(), (member) => this.pauseOne(member, options.mode));
    });
  }

  /**
   * Resumes all paused engines. Opens the gate when every engine has answered, unless another pause has begun. Rejects with
   * `engine_error` when an engine refused; that engine is excluded until it resumes.
   */
  resume(): Promise<void> {
    const { pauseCount } = this;
    return this.inOrder(async () => {
      try {
        await this.sendAll('resume', [...this.pausedMembers], (member) => this.resumeOne(member));
      } finally {
        if (this.pauseCount === pauseCount) this.deps.gate.open();
      }
    });
  }

  private inOrder(work: () => Promise<void>): Promise<void> {
    const done = this.lastOrder.then(work);
    this.lastOrder = done.catch(() => {});
    return done;
  }

  /**
   * Sends the request to all members concurrently. Throws `engine_error` when one of them refused. An unreachable engine is not such a
   * refusal, because it samples nothing for this process.
   */
  private async sendAll(
    verb: 'pause' | 'resume',
    members: readonly Member[],
    send: (member: Member) => Promise<void>,
  ): Promise<void> {
    const refusals: FloeError[] = [];
    const sendOne = async (member: Member): Promise<void> => {
      try {
        await send(member);
      } catch (thrown) {
        const error = asFloeError(thrown, 'engine_error');
        if (error.code !== 'engine_unavailable') refusals.push(error);
        this.deps.notice(`an engine did not ${verb}`, { engine_id: member.id, reason: error.message });
      }
    };
    await Promise.all(members.map(sendOne));
    const [first] = refusals;
    if (first === undefined) return;
    const reasons = refusals.map(({ message }) => message).join('; ');
    throw new FloeError('engine_error', `not every engine did ${verb}: ${reasons}`, first.details, first);
  }

  private async pauseOne(member: Member, mode: PauseMode): Promise<void> {
    if (member.engine.info().capabilities.pause) {
      this.pausedMembers.add(member);
      await member.pause(mode);
    } else if (member.inflight > 0) {
      this.deps.notice('an engine does not support pausing; its calls in flight run to their end', {
        engine_id: member.id,
        inflight: member.inflight,
      });
    }
  }

  private async resumeOne(member: Member): Promise<void> {
    this.pausedMembers.delete(member);
    if (!member.isRemoved) await member.resume();
  }
}
