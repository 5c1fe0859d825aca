import { EventEmitter } from 'node:events';
import { Semaphore } from '../../core/semaphore.ts';
import type { NodeStageMetrics } from '../../schema/index.ts';
import type { PoolSizes } from './config.ts';
import { admissible, type DispatchPolicy, stageSizes } from './dispatch-policy.ts';

/**
 * The node's capacity. A session takes an INIT worker, then a place in READY, a RUN worker, a POSTRUN worker, and
 * never holds one while it waits for the next.
 *
 * READY never overflows, because sessions are only taken on as the dispatch policy says; with `pipeline` and `bounded_batch` none
 * ever waits for an INIT worker either.
 */
export class StagePools {
  readonly policy: DispatchPolicy;
  /** As the policy has them, which is not always as they were configured. */
  readonly sizes: PoolSizes;
  private readonly init: Semaphore;
  private readonly run: Semaphore;
  private readonly postrun: Semaphore;
  private live = 0;
  private ready = 0;
  private readonly events = new EventEmitter();

  constructor(sizes: PoolSizes, policy: DispatchPolicy = 'pipeline') {
    this.policy = policy;
    this.sizes = stageSizes(policy, sizes);
    this.init = new Semaphore(this.sizes.init);
    this.run = new Semaphore(this.sizes.run);
    this.postrun = new Semaphore(this.sizes.postrun);
  }

  /** How many sessions may be leased now. */
  admissible(): number {
    return admissible(this.policy, this.sizes, {
      live: this.live,
      init: this.init.inUse + this.init.waiting,
      ready: this.ready,
      freeRun: this.run.free,
    });
  }

  /** Takes a session on. The returned function tells that it has ended and is delivered; it is safe to call twice. */
  admit(): () => void {
    this.live++;
    return this.notifying(() => this.live--);
  }

  /** Calls `listener` whenever capacity may have grown; the returned function ends that. */
  onChange(listener: () => void): () => void {
    this.events.on('change', listener);
    return () => this.events.off('change', listener);
  }

  /**
   * Waits for an INIT worker; the session counts as in INIT from this call on. Resolves with the release, which is safe to call
   * twice; rejects with the signal's reason.
   */
  async enterInit(signal: AbortSignal): Promise<() => void> {
    return this.notifying(await this.init.acquire(signal));
  }

  /**
   * Waits in READY for a RUN worker. `leaveInit` is called in the same step: a session between two stages would be counted in
   * neither, and one too many taken on.
   */
  async enterRun(leaveInit: () => void, signal: AbortSignal): Promise<() => void> {
    this.ready++;
    leaveInit();
    try {
      return this.notifying(await this.run.acquire(signal));
    } finally {
      this.ready--;
      this.events.emit('change');
    }
  }

  async enterPostrun(signal: AbortSignal): Promise<() => void> {
    return this.notifying(await this.postrun.acquire(signal));
  }

  metrics(): NodeStageMetrics {
    return {
      init_inflight: this.init.inUse,
      ready_depth: this.ready,
      run_inflight: this.run.inUse,
      postrun_queue_depth: this.postrun.waiting,
      postrun_inflight: this.postrun.inUse,
    };
  }

  private notifying(release: () => void): () => void {
    let released = false;
    return () => {
      if (released) return;
      released = true;
      release();
      this.events.emit('change');
    };
  }
}
