import { EventEmitter } from 'node:events';
import { Semaphore } from '../../core/semaphore.ts';
import type { NodeRegistration, NodeStageMetrics } from '../../schema/index.ts';
import type { PoolSizes } from './config.ts';

export type DispatchPolicy = NodeRegistration['dispatch_policy'];

/** Counts of a node's sessions by stage. */
type NodeLoad = {
  /** Sessions that were leased and are not yet delivered. */
  readonly live: number;
  /** Sessions in INIT or waiting for an INIT worker. */
  readonly init: number;
  readonly ready: number;
  readonly freeRun: number;
};

/**
 * How many sessions a node may lease now.
 *
 * `pipeline`: stages of different sessions overlap. A session is leased as soon as an INIT worker is free and a slot in READY or a RUN
 * worker will be free after INIT. Sessions in POSTRUN or in delivery do not count.
 *
 * `batch`: as many sessions as RUN and READY hold are leased together, and the next ones only after the last of them has ended. Stages
 * overlap within a batch. The batch is what one lease call returns, so it is smaller when the queue is short.
 *
 * `bounded_batch`: as many sessions as RUN has workers. Each worker takes one session through all stages and its delivery before it
 * takes the next, so a session never waits between stages.
 */
function admissible(policy: DispatchPolicy, sizes: PoolSizes, load: NodeLoad): number {
  switch (policy) {
    case 'pipeline': {
      const slots = sizes.ready + load.freeRun - load.init - load.ready;
      return Math.max(0, Math.min(sizes.init - load.init, slots));
    }
    case 'batch':
      return load.live === 0 ? sizes.run + sizes.ready : 0;
    case 'bounded_batch':
      return Math.max(0, sizes.run - load.live);
  }
}

/** The pool sizes that a policy uses: in `bounded_batch` every RUN worker also has a slot in INIT and POSTRUN. */
function stageSizes(policy: DispatchPolicy, sizes: PoolSizes): PoolSizes {
  return policy === 'bounded_batch' ? { ...sizes, init: sizes.run, ready: 0, postrun: sizes.run } : sizes;
}

/**
 * The node's capacity. A session uses an INIT worker, then a slot in READY, a RUN worker and a POSTRUN worker, and never holds one while
 * it waits for the next. READY never overflows, because sessions are leased only as the dispatch policy allows; with `pipeline` and
 * `bounded_batch` no session waits for an INIT worker either.
 */
export class StagePools {
  readonly policy: DispatchPolicy;
  /** Sizes that the policy uses, which can differ from the configured ones. */
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

  /** Counts a leased session. The returned function is to be called once it has been delivered; a second call has no effect. */
  admit(): () => void {
    this.live++;
    return this.notifying(() => this.live--);
  }

  /** Calls `listener` whenever capacity may have grown, until the returned function is called. */
  onChange(listener: () => void): () => void {
    this.events.on('change', listener);
    return () => this.events.off('change', listener);
  }

  /**
   * Waits for an INIT worker; the session counts as in INIT from this call on. Resolves with the function that releases the worker,
   * whose second call has no effect. Rejects with the signal's reason.
   */
  async enterInit(signal: AbortSignal): Promise<() => void> {
    return this.notifying(await this.init.acquire(signal));
  }

  /**
   * Waits in READY for a RUN worker and resolves as {@link enterInit}. Calls `leaveInit` in the same step, since a session that
   * counts in neither stage would let the node lease one too many.
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

  /** Waits for a POSTRUN worker and resolves as {@link enterInit}. */
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
