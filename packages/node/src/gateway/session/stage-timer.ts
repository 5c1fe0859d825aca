import { abortAfter, type Clock, FloeError } from '@floe-rl/core';

/**
 * The time budget of one attempt. In `active` mode only the time between `resume` and `pause` counts, so the time that a session waits in a
 * queue or in the stage READY does not. In `wall` mode all time since the construction of the timer counts.
 */
export class StageTimer {
  private readonly clock: Clock;
  private readonly budgetMs: number;
  private readonly mode: 'active' | 'wall';
  private spentMs = 0;
  private runningSinceMs: number | null;

  constructor(clock: Clock, budgetMs: number, mode: 'active' | 'wall') {
    this.clock = clock;
    this.budgetMs = budgetMs;
    this.mode = mode;
    this.runningSinceMs = mode === 'wall' ? clock.monotonicMs() : null;
  }

  resume(): void {
    if (this.runningSinceMs === null) this.runningSinceMs = this.clock.monotonicMs();
  }

  pause(): void {
    if (this.mode === 'wall' || this.runningSinceMs === null) return;
    this.spentMs += this.clock.monotonicMs() - this.runningSinceMs;
    this.runningSinceMs = null;
  }

  usedMs(): number {
    const running = this.runningSinceMs === null ? 0 : this.clock.monotonicMs() - this.runningSinceMs;
    return this.spentMs + running;
  }

  remainingMs(): number {
    return Math.max(0, this.budgetMs - this.usedMs());
  }

  /**
   * Runs `work` while the timer counts. The signal for `work` aborts with `deadline_exceeded` when the budget of the session or of the
   * stage (`stageBudgetMs`; `null` when the stage has none) is used up, or with the reason of `parent` when `parent` aborts. Resolves or
   * rejects with the outcome of `work`, which must end when its signal aborts.
   */
  async run<T>(
    stage: string,
    stageBudgetMs: number | null,
    parent: AbortSignal,
    work: (signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    this.resume();
    const sessionMs = this.remainingMs();
    const isStageLimit = stageBudgetMs !== null && stageBudgetMs < sessionMs;
    const limitMs = isStageLimit ? stageBudgetMs : sessionMs;
    const budget = isStageLimit ? 'stage' : 'session';
    const exceeded = (): FloeError =>
      new FloeError('deadline_exceeded', `${stage} ran out of its ${budget} budget`, {
        stage,
        budget,
        limit_ms: isStageLimit ? stageBudgetMs : this.budgetMs,
      });
    const limited = abortAfter(this.clock, limitMs, exceeded, parent);
    try {
      return await work(limited.signal);
    } finally {
      limited.release();
      this.pause();
    }
  }
}
