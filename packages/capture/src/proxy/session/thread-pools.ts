import { FloeError } from '@floe-rl/core';
import type { TaskEngine } from '@floe-rl/core/schema';
import { MAIN_THREAD } from '../../dialects/call-kinds/prompt-view.ts';
import type { CanonicalRequest } from '../../dialects/dialect.ts';

/**
 * The engine pools of one session. The main agent uses the pool of the task, and each further agent thread uses one of the pools that the task
 * allows.
 */
export class ThreadPools {
  private readonly engine: TaskEngine;
  private readonly byThread = new Map<string, string>();

  constructor(engine: TaskEngine) {
    this.engine = engine;
  }

  /**
   * Returns the pool that samples the reply to a request. Throws `unsupported` for a pool that the task does not allow, and when the main
   * agent asks for a pool other than the task's. Throws `conflict` for a thread that has used another pool, because the replies of a thread
   * become one trace.
   */
  of({ thread, enginePool }: Pick<CanonicalRequest, 'thread' | 'enginePool'>): string {
    const { pool, extra_pools: extra = [] } = this.engine;
    const wanted = enginePool ?? pool;
    if (wanted !== pool && !extra.includes(wanted)) {
      const message = `the task does not allow the engine pool ${wanted}; engine.extra_pools has: ${extra.join(', ') || 'none'}`;
      throw new FloeError('unsupported', message, { path: 'engine.extra_pools' });
    }
    if (wanted !== pool && thread === MAIN_THREAD) {
      throw new FloeError('unsupported', `the main agent uses the engine pool of the task, ${pool}, and not ${wanted}`);
    }
    const used = this.byThread.get(thread) ?? wanted;
    if (used !== wanted) {
      throw new FloeError('conflict', `the agent thread ${thread} uses the engine pool ${used}, and not ${wanted}`);
    }
    this.byThread.set(thread, used);
    return used;
  }
}
