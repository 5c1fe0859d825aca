import { asFloeError, FloeError, onAbort } from '@floe-rl/core';
import type { PauseMode } from '@floe-rl/core/schema';
import type { EngineNotice } from '../engine.ts';
import type { PauseOptions, UnpausedEngine } from './engine-pools.ts';
import type { Member } from './member.ts';

/**
 * Time after which a caller whose request was rejected during a pause should retry. Weight updates take seconds; a harness that retries
 * sooner only uses up its retries.
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
    // Wakes the waiting calls, because the new options may reject them.
    this.wakeAll();
  }

  open(): void {
    this.options = null;
    this.wakeAll();
  }

  /**
   * Resolves when the engines are not paused. Rejects with `overloaded` when the current pause rejects calls, or with the signal's reason.
   */
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
   * Like {@link pass}, for a call that was admitted earlier: it waits until the pause ends, even when the pause rejects new calls. Rejects
   * with the signal's reason.
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
  /** Returns the engines that were removed and on which calls are still running. */
  readonly leaving: () => readonly Member[];
};

/** Pauses and resumes all engines. Requests to pause or resume are carried out one at a time, in the order in which they were made. */
export class Pausing {
  private readonly deps: PausingDeps;
  /** Engines to which a pause request was sent and the following resume request was not sent yet. */
  private readonly pausedMembers = new Set<Member>();
  /** Engines whose last pause request failed, with the reason. */
  private readonly failures = new Map<Member, FloeError>();
  private lastOrder: Promise<unknown> = Promise.resolve();
  private pauseCount = 0;

  constructor(deps: PausingDeps) {
    this.deps = deps;
  }

  get paused(): PauseMode | null {
    return this.deps.gate.closed?.mode ?? null;
  }

  /** The engines that the pause in effect does not stop, as `EnginePools.unpaused` describes. */
  get unpaused(): readonly UnpausedEngine[] {
    if (this.paused === null) return [];
    const { members, leaving } = this.deps;
    return [...members(), ...leaving()].flatMap((member) => this.unpausedOf(member) ?? []);
  }

  /**
   * Pauses all engines. New calls are held or rejected as soon as this method returns; its promise resolves when every engine has answered.
   * Rejects with `engine_error` when an engine refused; new calls are then still held or rejected.
   */
  pause(options: PauseOptions): Promise<void> {
    this.pauseCount++;
    this.deps.gate.close(options);
    return this.inOrder(async () => {
      for (const member of this.deps.leaving()) member.weightsMayHaveChanged();
      await this.sendAll('pause', this.deps.members(), (member) => this.pauseOne(member, options.mode));
    });
  }

  /**
   * Resumes all engines, including removed ones on which the pause froze replies. New calls are admitted when every engine has answered,
   * unless another pause has begun. Rejects with `engine_error` when an engine refused; that engine is excluded until it resumes. Sends
   * nothing to the engines when there is no pause.
   */
  resume(): Promise<void> {
    const { pauseCount } = this;
    return this.inOrder(async () => {
      // The weights may change during a pause. Every reply that the pause froze and every call that it held therefore requests the policy
      // version again.
      for (const member of [...this.deps.members(), ...this.deps.leaving()]) member.weightsMayHaveChanged();
      this.failures.clear();
      try {
        await this.sendAll('resume', this.membersToResume(), (member) => member.resume());
      } finally {
        this.pausedMembers.clear();
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
   * Sends the request to all members concurrently. Throws `engine_error` when one of them refused. An engine that cannot be reached does
   * not count as a refusal, because it samples nothing for this process.
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
    this.failures.delete(member);
    if (member.engine.info().capabilities.pause) {
      this.pausedMembers.add(member);
      try {
        await member.pause(mode);
      } catch (error) {
        this.failures.set(member, asFloeError(error, 'engine_error'));
        member.weightsMayHaveChanged();
        throw error;
      }
      return;
    }
    // The replies that are running on this engine continue while the weights are updated.
    member.weightsMayHaveChanged();
    if (member.inflight > 0) {
      this.deps.notice('an engine does not support pausing; its calls in flight run to their end', {
        engine_id: member.id,
        inflight: member.inflight,
      });
    }
  }

  private unpausedOf(member: Member): UnpausedEngine | null {
    const failure = this.failures.get(member);
    const isStopped = failure === undefined && this.pausedMembers.has(member);
    const hasRefused = failure !== undefined && failure.code !== 'engine_unavailable';
    if (isStopped || (member.inflight === 0 && !hasRefused)) return null;
    const cannot = member.isRemoved ? 'it was removed and is not paused' : 'it cannot be paused';
    const reason = failure === undefined ? cannot : `it did not pause: ${failure.message}`;
    return { engineId: member.id, message: `${reason}; replies that are running on it: ${member.inflight}` };
  }

  private membersToResume(): readonly Member[] {
    if (this.paused === null) return [];
    // An engine that was registered during the pause is resumed too: its server may be paused already, for instance because it was
    // registered before under other settings.
    const canPause = this.deps.members().filter((member) => member.engine.info().capabilities.pause);
    const frozen = [...this.pausedMembers].filter((member) => member.isRemoved && member.inflight > 0);
    return [...canPause, ...frozen];
  }
}
