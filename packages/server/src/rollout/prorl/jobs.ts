import { FloeError } from '@floe-rl/core';
import type { SessionSummary, TaskRequest, Trajectory } from '@floe-rl/core/schema';
import type { ResultWithSummary, TaskRow } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { cancelLocked, cancelTask } from '../sessions/cancel.ts';
import { aliasedTask, insertAliased, reserveAlias } from '../tasks/aliases.ts';
import { requestOf } from '../tasks/groups.ts';
import { checkRequest } from '../tasks/submit.ts';
import { unknownTask } from '../tasks/views.ts';
import { runTransaction } from '../transaction.ts';
import { isStoreUnavailable } from '../watched-store.ts';

/** How long one wait for the end of a job lasts before it is repeated, ms. The request as a whole is held without a limit. */
const WAIT_MS = 60_000;

/** An ended job. `trajectory` is `null` when the job's session ended without a trajectory. */
export type EndedJob = {
  readonly task: TaskRequest;
  readonly summary: SessionSummary;
  readonly trajectory: Trajectory | null;
};

/** The rows of an ended job: its task and the result of its only session. */
type EndedRows = { readonly task: TaskRow; readonly result: ResultWithSummary };

/** The jobs of ProRL Agent's API: floe tasks of one sample, whose client waits for the result. */
export class Jobs {
  private readonly context: RolloutContext;
  /** For each task id, the number of client requests to this server that wait for the task's result. */
  private readonly waiting = new Map<string, number>();

  constructor(context: RolloutContext) {
    this.context = context;
  }

  /** Number of jobs for which a client of this server waits. */
  get pending(): number {
    return this.waiting.size;
  }

  /**
   * Runs a job and resolves with its ended session. A job with the id of a job that runs is the same job, so a client whose connection
   * broke may repeat its request. A job without an id is cancelled when its client closes the connection or the server closes, because
   * no later request can wait for it. Throws `not_ready` when the server closes.
   */
  async run(task: TaskRequest, jobId: string | null, disconnected: AbortSignal): Promise<EndedJob> {
    await checkRequest(this.context, task);
    const taskId = await this.submit(task, jobId);
    this.waiting.set(taskId, (this.waiting.get(taskId) ?? 0) + 1);
    try {
      const ended = await this.ended(taskId, disconnected);
      if (ended !== null) return ended;
    } finally {
      const left = (this.waiting.get(taskId) ?? 1) - 1;
      if (left === 0) this.waiting.delete(taskId);
      else this.waiting.set(taskId, left);
    }
    if (jobId === null) await cancelTask(this.context, taskId, false);
    if (this.context.closing.aborted)
      throw new FloeError('not_ready', 'the server is shutting down; repeat the request');
    throw new FloeError('bad_request', 'the client closed the connection');
  }

  /** Cancels the job with this id, if it runs. */
  async cancel(jobId: string): Promise<void> {
    const alias = { api: 'prorl', alias: jobId } as const;
    await runTransaction(this.context, async (transaction) => {
      await reserveAlias(transaction.tables, alias);
      const task = await aliasedTask(transaction.tables, alias, 'lock');
      if (task !== undefined) await cancelLocked(transaction, task);
    });
  }

  /** Cancels all jobs for which clients of this server wait. */
  async cancelAll(): Promise<void> {
    for (const taskId of [...this.waiting.keys()]) await cancelTask(this.context, taskId, false);
  }

  private submit(task: TaskRequest, jobId: string | null): Promise<string> {
    // The task of a job without an id needs an alias too, because an alias marks the tasks of other systems' APIs.
    const alias = { api: 'prorl', alias: jobId ?? this.context.newId('job') } as const;
    return runTransaction(this.context, async (transaction) => {
      await reserveAlias(transaction.tables, alias);
      const earlier = await aliasedTask(transaction.tables, alias, 'lock');
      return earlier?.ended_ms === null ? earlier.task_id : insertAliased(transaction, alias, earlier, task);
    });
  }

  /**
   * Waits until the job has ended, also while the store is unavailable. Resolves with `null` when the client has closed the connection or the
   * server closes.
   */
  private async ended(taskId: string, disconnected: AbortSignal): Promise<EndedJob | null> {
    const { wakeups, closing } = this.context;
    while (!disconnected.aborted && !closing.aborted) {
      const ended = await wakeups.poll(`task:${taskId}`, WAIT_MS, disconnected, () => this.rowsOf(taskId));
      if (ended !== undefined) return this.endedJob(ended);
    }
    return null;
  }

  /** Returns the rows of a job, or `undefined` while it runs or the store is unavailable. */
  private async rowsOf(taskId: string): Promise<EndedRows | undefined> {
    try {
      return await this.context.store.read(async (tables) => {
        const task = await tables.tasks.get(taskId);
        if (task === undefined) throw unknownTask(taskId);
        if (task.ended_ms === null) return undefined;
        const [result] = await tables.results.ofTask(taskId);
        if (result === undefined) throw new Error(`the ended task ${taskId} has no result`);
        return { task, result };
      });
    } catch (thrown) {
      if (isStoreUnavailable(thrown)) return undefined;
      throw thrown;
    }
  }

  private async endedJob({ task, result }: EndedRows): Promise<EndedJob> {
    const bytes = result.trajectory_ref === null ? null : await this.context.blobs.get(result.trajectory_ref);
    return {
      task: requestOf(task),
      summary: JSON.parse(result.summary) as SessionSummary,
      trajectory: bytes === null ? null : (JSON.parse(bytes.toString()) as Trajectory),
    };
  }
}
