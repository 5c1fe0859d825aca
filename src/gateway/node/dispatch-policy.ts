import type { NodeRegistration } from '../../schema/index.ts';
import type { PoolSizes } from './config.ts';

export type DispatchPolicy = NodeRegistration['dispatch_policy'];

/** Where the sessions of a node are. */
export type NodeLoad = {
  /** Taken on and not ended, their delivery included. */
  readonly live: number;
  /** In INIT or waiting for a worker of it. */
  readonly init: number;
  readonly ready: number;
  readonly freeRun: number;
};

/**
 * How many sessions a node may take on now.
 *
 * `pipeline`: stages overlap freely. A session is taken on as soon as there is an INIT worker for it and it will have a place in
 * READY, or a RUN worker, when it gets there; neither delivery nor POSTRUN of others holds it back.
 *
 * `batch`: as many as RUN and READY hold, taken at once, and nothing more until the last of them has ended. Within a batch the stages
 * overlap as the pools let them. What one lease brings is the batch: with a short queue it is smaller.
 *
 * `bounded_batch`: as many workers as RUN has. Each carries one session through all stages and its delivery, and only then takes
 * another; so a session never waits between stages, and a stage is never busier than there are workers.
 */
export function admissible(policy: DispatchPolicy, sizes: PoolSizes, load: NodeLoad): number {
  switch (policy) {
    case 'pipeline': {
      const places = sizes.ready + load.freeRun - load.init - load.ready;
      return Math.max(0, Math.min(sizes.init - load.init, places));
    }
    case 'batch':
      return load.live === 0 ? sizes.run + sizes.ready : 0;
    case 'bounded_batch':
      return Math.max(0, sizes.run - load.live);
  }
}

/** The pools that a policy works with: a worker of `bounded_batch` brings its own place in every stage. */
export function stageSizes(policy: DispatchPolicy, sizes: PoolSizes): PoolSizes {
  return policy === 'bounded_batch' ? { ...sizes, init: sizes.run, ready: 0, postrun: sizes.run } : sizes;
}
