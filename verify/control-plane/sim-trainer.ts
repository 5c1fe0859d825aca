import { asFloeError, FloeError, onAbort, sleep } from '@floe-rl/core';
import {
  type ResultsPage,
  type SubmitReply,
  type TaskResult,
  type TaskStatus,
  taskRequestSchema,
} from '@floe-rl/core/schema';
import type { RouteName } from '#server/rollout/http/api';
import type { SimCluster } from './cluster.ts';
import type { Host } from './network.ts';
import type { TaskPlan, TrainerPlan } from './plan.ts';
import { SimProcess } from './sim-process.ts';
import type { ApiCall, CallbackReceiver, SimServer } from './sim-server.ts';

/** Range in ms from which the pause before the repetition of a failed call is drawn. */
const RETRY_DELAY_MS = { from: 50, to: 800 };
/**
 * A submission that takes less than this time, in ms, must be refused when its task id was cancelled before. The cancellation is at most
 * 300 ms older than the submission, and the server remembers it for at least 1 s, so the server cannot have forgotten it.
 */
const CERTAIN_TOMBSTONE_MS = 500;
/** Maximum time in seconds that the server may hold a read open until there are new results (long polling). */
const READ_WAIT_SECONDS = 4;

/**
 * A simulated trainer: it submits and cancels tasks, reads results and receives callbacks. It is never killed, but its network may fail.
 */
export class SimTrainer implements CallbackReceiver {
  readonly host: Host;
  readonly plan: TrainerPlan;
  /** Cursor of the last result that the trainer has read. */
  cursor = 0;
  /** Number of this trainer's tasks for which `submit` has not finished yet. */
  openTasks = 0;
  private readonly cluster: SimCluster;
  private readonly servers: readonly SimServer[];
  private readonly process: SimProcess;
  /** Number of times that the trainer has switched to another server. Its calls go to `servers[serverIndex % servers.length]`. */
  private serverIndex = 0;

  constructor(plan: TrainerPlan, cluster: SimCluster, servers: readonly SimServer[]) {
    this.plan = plan;
    this.cluster = cluster;
    this.servers = servers;
    this.host = cluster.host(plan.name);
    this.process = new SimProcess(plan.name, cluster.timeline);
    this.host.process = this.process;
  }

  start(): void {
    this.submitAll(this.plan.tasks);
    if (this.plan.reads !== 'none') this.runInBackground(this.readResults());
  }

  /** Submits and cancels each task at the times that it states. */
  submitAll(tasks: readonly TaskPlan[]): void {
    this.openTasks += tasks.length;
    for (const task of tasks) {
      this.cluster.timeline.after(task.atMs, () => this.runInBackground(this.submit(task)));
      const { task_id: taskId } = task.request;
      // The plan may cancel a task before it is submitted. The server then refuses a task with this id for some time.
      if (task.cancelAtMs !== null && taskId !== undefined) {
        this.cluster.timeline.after(task.cancelAtMs, () => this.runInBackground(this.cancel(taskId)));
      }
    }
  }

  /** Whether this trainer reads the results of the tasks that `trainer` submitted. */
  readsResultsOf(trainer: string): boolean {
    return this.plan.reads === 'all' || (this.plan.reads === 'own' && trainer === this.plan.name);
  }

  async receiveCallback(
    headers: Readonly<Record<string, string>>,
    body: string,
    disconnected: AbortSignal,
  ): Promise<number> {
    const { cluster, process } = this;
    const result = JSON.parse(body) as TaskResult;
    const { random } = cluster;
    const refuses = random.chance(this.plan.callbackRefusalRate) && !cluster.faultsEnded;
    const hangs = refuses && random.chance(0.4);
    const key = headers['idempotency-key'] ?? '';
    cluster.history.addCallback(result.task_id, { key, body, acknowledged: !refuses });
    cluster.timeline.record(this.host.name, `${refuses ? 'refuses' : 'receives'} the callback of ${result.task_id}`);
    if (hangs) await new Promise<void>((resolve) => onAbort(disconnected, resolve));
    await sleep(process.clock, random.between(0, 50));
    return refuses ? 500 : 200;
  }

  /**
   * Repeats the submission of a task until the server accepts or refuses it. Then cancels the task or one of its sessions when the plan
   * says so.
   */
  private async submit(task: TaskPlan): Promise<void> {
    const { history, timeline, plan, random } = this.cluster;
    const request = taskRequestSchema.parse(task.request);
    const { idempotency_key: key } = request;
    const name = request.task_id ?? key;
    const cancelledBefore = history.cancelled.has(request.task_id ?? '');
    const startedMs = timeline.nowMs;
    try {
      const reply = (await this.callUntilAnswered('submitTask', {
        id: '',
        query: undefined,
        body: request,
      })) as SubmitReply;
      timeline.record(this.host.name, `task ${reply.task_id} is accepted: ${reply.session_ids.join(' ')}`);
      history.addSubmission(reply.task_id, { trainer: this.plan.name, sessionIds: reply.session_ids, request });
      if (
        plan.isFaultless &&
        cancelledBefore &&
        timeline.nowMs - startedMs < CERTAIN_TOMBSTONE_MS &&
        !reply.duplicate
      ) {
        timeline.reportViolation('cancelled', `task ${name} was cancelled before it was submitted, and is accepted`);
      }
      if (task.cancelAtMs !== null && request.task_id === undefined)
        await this.cancelAt(task.cancelAtMs, reply.task_id);
      if (task.cancelSessionAtMs !== null)
        await this.cancelSessionAt(task.cancelSessionAtMs, random.pick(reply.session_ids));
    } catch (thrown) {
      const { code, message } = asFloeError(thrown);
      timeline.record(this.host.name, `task ${name} is refused: ${code}`);
      if (code !== 'conflict' || task.cancelAtMs === null) {
        timeline.reportViolation('submits', `task ${name} was refused: ${code}: ${message}`);
      }
    } finally {
      this.openTasks--;
    }
  }

  private async cancelAt(atMs: number, taskId: string): Promise<void> {
    await this.sleepUntil(atMs);
    await this.cancel(taskId);
  }

  private async cancel(taskId: string): Promise<void> {
    const { history, timeline } = this.cluster;
    const query = { register_if_missing: true };
    timeline.record(this.host.name, `cancels ${taskId}`);
    const status = (await this.callUntilAnswered('cancelTask', { id: taskId, query, body: undefined })) as TaskStatus;
    if (status.status === 'cancelled') history.cancelled.add(taskId);
    timeline.record(this.host.name, `task ${taskId} is ${status.status}`);
  }

  private async cancelSessionAt(atMs: number, sessionId: string): Promise<void> {
    await this.sleepUntil(atMs);
    this.cluster.timeline.record(this.host.name, `cancels ${sessionId}`);
    const apiCall = { id: sessionId, query: undefined, body: undefined };
    // The server returns a not-found error when the session has ended and its task has been removed.
    const view = (await this.callUntilAnswered('cancelSession', apiCall).catch(nullIfNotFound)) as {
      status: string;
    } | null;
    if (view?.status === 'CANCELLED') this.cluster.history.cancelled.add(sessionId);
  }

  /** Reads pages of results until the simulation ends. */
  private async readResults(): Promise<void> {
    const { cluster, plan } = this;
    const { history, random, timeline } = cluster;
    const filter = {
      ...(plan.reads === 'own' ? { trainer: plan.name } : {}),
      ...(plan.isConsumer ? { consumer: `${plan.name}-reader` } : {}),
    };
    for (;;) {
      if (plan.readPauseMs > 0) await sleep(this.process.clock, plan.readPauseMs);
      // Before every tenth read on average, a named consumer simulates its own restart. It reads without a cursor, so the server starts at the
      // position that it has stored for this consumer.
      const restarted = plan.isConsumer && random.chance(0.1);
      if (restarted) this.cursor = 0;
      const position = restarted ? {} : { after: this.cursor };
      const limit = random.integer(Math.ceil(plan.pageSize / 5), plan.pageSize);
      const query = { ...filter, ...position, peek: false, limit, wait: READ_WAIT_SECONDS };
      const page = (await this.callUntilAnswered('getResults', { id: '', query, body: undefined })) as ResultsPage;
      for (const result of page.results) {
        if ((result.cursor ?? 0) <= this.cursor) {
          timeline.reportViolation('cursor order', `cursor ${result.cursor} was returned after ${this.cursor}`);
        }
        history.addReadResult(plan.name, result);
        this.cursor = result.cursor ?? 0;
      }
      if (page.next_cursor < this.cursor) timeline.reportViolation('cursor order', 'next_cursor moved back');
      this.cursor = page.next_cursor;
    }
  }

  /** Repeats a call until a server answers it, with another server at each attempt. Rejects with the first error that is not retryable. */
  private async callUntilAnswered<Name extends RouteName>(name: Name, apiCall: ApiCall<Name>): Promise<unknown> {
    const { cluster, process } = this;
    for (;;) {
      const server = this.servers[this.serverIndex % this.servers.length] as SimServer;
      try {
        return await cluster.network.call(process, {
          to: server.host,
          name,
          handle: (disconnected) => server.call(name, apiCall, disconnected),
        });
      } catch (thrown) {
        if (!FloeError.is(thrown) || !thrown.retryable) throw thrown;
        this.serverIndex++;
        await sleep(process.clock, cluster.random.between(RETRY_DELAY_MS.from, RETRY_DELAY_MS.to));
      }
    }
  }

  private sleepUntil(atMs: number): Promise<void> {
    return sleep(this.process.clock, Math.max(0, atMs - this.cluster.timeline.nowMs));
  }

  private runInBackground(work: Promise<void>): void {
    work.catch((thrown: unknown) => {
      const { code, message } = asFloeError(thrown);
      this.cluster.timeline.reportViolation('no defects', `${this.host.name}: ${code}: ${message}`);
    });
  }
}

function nullIfNotFound(thrown: unknown): null {
  if (FloeError.is(thrown) && thrown.code === 'not_found') return null;
  throw thrown;
}
