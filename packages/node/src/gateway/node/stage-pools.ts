import { EventEmitter } from 'node:events';
import { Semaphore } from '@floe-rl/core';
import type { NodeRegistration, StageCounts } from '@floe-rl/core/schema';
import type { PoolSizes } from './config.ts';

export type DispatchPolicy = NodeRegistration['dispatch_policy'];

/** Counts of the sessions and free workers of a node, from which the number of sessions to lease is computed. */
type NodeLoad = {
  /** Number of sessions that were leased and are not yet delivered. */
  readonly live: number;
  /** Number of sessions in the INIT stage, whether they have an INIT worker or wait for one. */
  readonly init: number;
  readonly ready: number;
  readonly freeRun: number;
  /** Whether sessions may be leased that will have to wait in READY. */
  readonly mayLeaseAhead: boolean;
};

/**
 * Returns how many more sessions a node may lease now, according to its dispatch policy:
 * - `pipeline`: the stages of different sessions overlap. A session is leased when an INIT worker is free and, after INIT, a slot in READY or
 * a RUN worker will be free for it. Sessions in POSTRUN or in delivery do not count.
 * - `batch`: a new batch of sessions is leased only after the last session of the previous batch has ended. A batch consists of the sessions
 * that one lease call returns. It has at most as many sessions as RUN has workers and READY has slots together, and fewer when the queue is
 * short. Stages overlap within a batch.
 * - `bounded_batch`: the node has at most as many sessions as RUN has workers. Each worker takes one session through all stages and its
 * delivery before it takes the next session, so a session never waits between stages.
 */
function admissible(policy: DispatchPolicy, sizes: PoolSizes, load: NodeLoad): number {
  switch (policy) {
    case 'pipeline': {
      const places = load.mayLeaseAhead ? sizes.ready : 0;
      const slots = places + load.freeRun - load.init - load.ready;
      return Math.max(0, Math.min(sizes.init - load.init, slots));
    }
    case 'batch':
      return load.live === 0 ? sizes.run + sizes.ready : 0;
    case 'bounded_batch':
      return Math.max(0, sizes.run - load.live);
  }
}

/** Returns the stage sizes that a dispatch policy uses, which can differ from the configured ones. With `bounded_batch`, every RUN worker also has a slot in INIT and POSTRUN. */
export function stageSizes(policy: DispatchPolicy, sizes: PoolSizes): PoolSizes {
  return policy === 'bounded_batch' ? { ...sizes, init: sizes.run, ready: 0, postrun: sizes.run } : sizes;
}

/**
 * Semaphores for the stages of the sessions on a node. A session uses an INIT worker, then a slot in READY, a RUN worker and a POSTRUN
 * worker, and holds none of them while it waits for the next. READY never overflows, because sessions are leased only as the dispatch
 * policy allows. With `pipeline` and `bounded_batch` no session waits for an INIT worker either.
 */
export class StagePools {
  readonly policy: DispatchPolicy;
  /** Stage sizes that the dispatch policy uses. They can differ from the configured sizes. */
  readonly sizes: PoolSizes;
  private readonly init: Semaphore;
  private readonly run: Semaphore;
  private readonly postrun: Semaphore;
  private live = 0;
  private ready = 0;
  private mayLeaseAhead = true;
  private readonly events = new EventEmitter();

  constructor(sizes: PoolSizes, policy: DispatchPolicy = 'pipeline') {
    this.policy = policy;
    this.sizes = stageSizes(policy, sizes);
    this.init = new Semaphore(this.sizes.init);
    this.run = new Semaphore(this.sizes.run);
    this.postrun = new Semaphore(this.sizes.postrun);
  }

  /** Returns how many more sessions the node may lease now. */
  admissible(): number {
    return admissible(this.policy, this.sizes, {
      live: this.live,
      init: this.init.inUse + this.init.waiting,
      ready: this.ready,
      freeRun: this.run.free,
      mayLeaseAhead: this.mayLeaseAhead,
    });
  }

  /**
   * Sets whether sessions may be leased that will have to wait in READY for a RUN worker. Without that, `pipeline` admits sessions as if
   * READY had size 0; sessions that already are in READY stay there. The other policies ignore it.
   */
  setLeaseAhead(mayLeaseAhead: boolean): void {
    if (mayLeaseAhead === this.mayLeaseAhead) return;
    this.mayLeaseAhead = mayLeaseAhead;
    this.events.emit('change');
  }

  /**
   * Counts a session that was leased. The caller must call the returned function when the session has been delivered; a second call has no
   * effect.
   */
  admit(): () => void {
    this.live++;
    return this.notifying(() => this.live--);
  }

  /** Calls `listener` whenever the node may be able to lease more sessions. Returns a function that removes the listener. */
  onChange(listener: () => void): () => void {
    this.events.on('change', listener);
    return () => this.events.off('change', listener);
  }

  /**
   * Waits for an INIT worker; the session counts as in INIT from the start of the wait. Resolves with a function that releases the worker;
   * calling it twice has no effect. Rejects with the reason of `signal` when `signal` aborts.
   */
  async enterInit(signal: AbortSignal): Promise<() => void> {
    return this.notifying(await this.init.acquire(signal));
  }

  /**
   * Waits in READY for a RUN worker and resolves like {@link enterInit}. Calls `leaveInit` in the same synchronous step in which the
   * session enters READY. Otherwise, a session could count in neither stage for a moment, and the node would lease one session too many.
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

  /** Waits for a POSTRUN worker and resolves like {@link enterInit}. */
  async enterPostrun(signal: AbortSignal): Promise<() => void> {
    return this.notifying(await this.postrun.acquire(signal));
  }

  metrics(): StageCounts {
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
