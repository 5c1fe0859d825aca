import { EventEmitter } from 'node:events';
import { Semaphore } from '../core/semaphore.ts';
import type { NodeStageMetrics } from '../schema/index.ts';
import type { PoolSizes } from './config.ts';

/**
 * The node's capacity. A session takes an INIT worker, then a place in READY, a RUN worker, a POSTRUN worker, and
 * never holds one while it waits for the next.
 *
 * READY never overflows and never makes an INIT worker wait, because admission reserves: sessions in INIT and READY
 * together may not exceed the READY buffer plus the RUN workers that are free.
 */
export class StagePools {
  readonly sizes: PoolSizes;
  private readonly run: Semaphore;
  private readonly postrun: Semaphore;
  private admitted = 0;
  private ready = 0;
  private readonly events = new EventEmitter();

  constructor(sizes: PoolSizes) {
    this.sizes = sizes;
    this.run = new Semaphore(sizes.run);
    this.postrun = new Semaphore(sizes.postrun);
  }

  /** How many sessions may be leased now. */
  admissible(): number {
    const aheadOfRun = this.admitted + this.ready;
    return Math.max(0, Math.min(this.sizes.init - this.admitted, this.sizes.ready + this.run.free - aheadOfRun));
  }

  /** Calls `listener` whenever capacity may have grown; the returned function ends that. */
  onChange(listener: () => void): () => void {
    this.events.on('change', listener);
    return () => this.events.off('change', listener);
  }

  /** Takes the INIT worker that admission reserved. The release is safe to call twice. */
  enterInit(): () => void {
    this.admitted++;
    let left = false;
    return () => {
      if (left) return;
      left = true;
      this.admitted--;
      this.events.emit('change');
    };
  }

  /** Waits in READY for a RUN worker. */
  async enterRun(signal: AbortSignal): Promise<() => void> {
    this.ready++;
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
      init_inflight: this.admitted,
      ready_depth: this.ready,
      run_inflight: this.run.inUse,
      postrun_queue_depth: this.postrun.waiting,
      postrun_inflight: this.postrun.inUse,
    };
  }

  private notifying(release: () => void): () => void {
    return () => {
      release();
      this.events.emit('change');
    };
  }
}
