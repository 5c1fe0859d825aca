import { Semaphore } from '@floe-rl/core';

/** Deliveries of one task in progress at the same time. The first holds the lock on the task's row, and the second waits for the lock. */
const PER_TASK = 2;

/**
 * Lets the deliveries of a task take turns. Each of them locks the task's row, so the store handles them one after the other anyway. Without
 * turns, a task of many samples that end together would take all connections to the database, and all other requests would wait for a
 * connection.
 */
export class TaskTurns {
  private readonly turns = new Map<string, Semaphore>();

  /** Runs `work` when it is its turn among the work for the same task, and resolves to its value. */
  async run<T>(taskId: string, work: () => Promise<T>): Promise<T> {
    const turn = this.turns.get(taskId) ?? new Semaphore(PER_TASK);
    this.turns.set(taskId, turn);
    const release = await turn.acquire();
    try {
      return await work();
    } finally {
      release();
      if (turn.inUse === 0) this.turns.delete(taskId);
    }
  }
}
