import { isoNow } from '../core/clock.ts';
import { asFloeError, FloeError } from '../core/errors.ts';
import type { CallbackRow, ResultWithSummary, TaskRow } from '../store/index.ts';
import { checkCallbackUrl } from './callback-address.ts';
import type { CallbackTransport } from './callback-transport.ts';
import type { RolloutContext } from './context.ts';
import { resultListBytes, resultListLength } from './result-bytes.ts';

/** Callbacks in flight at once: a slow trainer must not hold up the others. */
const MAX_PARALLEL = 8;
/** How often the outbox is looked at for retries that have come due. */
const LOOK_AGAIN_MS = 500;

/**
 * Posts finished tasks to their `callback_url` until the trainer answers 2xx. What is still to be delivered lies in the
 * store, so a restart goes on. The trainer may see a result more than once, always under the same `idempotency-key`.
 */
export class CallbackDelivery {
  private readonly context: RolloutContext;
  private readonly transport: CallbackTransport;
  private readonly inFlight = new Map<string, Promise<unknown>>();

  constructor(context: RolloutContext, transport: CallbackTransport) {
    this.context = context;
    this.transport = transport;
  }

  /** Runs until the server closes. */
  async run(): Promise<void> {
    const { wakeups, closing } = this.context;
    while (!closing.aborted) {
      await wakeups.poll('callbacks', LOOK_AGAIN_MS, closing, async () =>
        (await this.whileStoreWorks(() => this.startDue())) ? true : undefined,
      );
    }
    await Promise.all(this.inFlight.values());
    await this.transport.close();
  }

  /** A full disk must not end the deliveries: what is due stays in the store and is looked at again. */
  private async whileStoreWorks<T>(work: () => Promise<T>): Promise<T | undefined> {
    try {
      return await work();
    } catch (thrown) {
      if (!FloeError.is(thrown) || thrown.code !== 'store_unavailable') throw thrown;
      this.context.log.error({ err: thrown }, 'the store is unavailable; callbacks wait');
      return undefined;
    }
  }

  private async startDue(): Promise<boolean> {
    const free = MAX_PARALLEL - this.inFlight.size;
    if (free <= 0 || this.context.closing.aborted) return false;
    const due = await this.context.store.transaction((tables) =>
      tables.callbacks.claimDue(this.context.time.nowMs(), free, this.context.time.nowMs() + 60_000),
    );
    const fresh = due.filter((row) => !this.inFlight.has(row.task_id)).slice(0, free);
    for (const row of fresh) {
      const delivery = this.whileStoreWorks(() => this.tryOnce(row)).finally(() => {
        this.inFlight.delete(row.task_id);
        this.context.wakeups.wake('callbacks');
      });
      this.inFlight.set(row.task_id, delivery);
    }
    return fresh.length > 0;
  }

  private async tryOnce(row: CallbackRow): Promise<void> {
    const { store, clock, time, log, closing } = this.context;
    const failure = await this.post(row).then(
      () => null,
      (thrown: unknown) => asFloeError(thrown, 'peer_unreachable'),
    );
    if (failure !== null && closing.aborted) return;
    const tries = row.tries + 1;
    if (failure === null) {
      await store.transaction((tables) =>
        tables.callbacks.update(row.task_id, { tries, delivered_at: isoNow(clock), last_error: null }),
      );
      return;
    }
    log.warn({ task_id: row.task_id, tries, error: failure.message }, 'a callback failed and will be tried again');
    const nextTryMs = time.nowMs() + this.backoffMs(tries);
    await store.transaction((tables) =>
      tables.callbacks.update(row.task_id, { tries, next_try_ms: nextTryMs, last_error: failure.message }),
    );
  }

  /** Exponential, with half of it random so that many callbacks to a trainer that came back do not arrive at once. */
  private backoffMs(tries: number): number {
    const { callback_backoff_seconds: base, callback_backoff_max_seconds: max } = this.context.config;
    return Math.min(max, base * 2 ** Math.min(tries - 1, 30)) * 1000 * (0.5 + this.context.random() / 2);
  }

  private async post(row: CallbackRow): Promise<void> {
    checkCallbackUrl(this.context.config, row.url);
    const { task, results } = await this.load(row.task_id);
    const paths = results.map((result) => `/sessions/${result.session_id}/trajectory`);
    const before = `{"task_id":${JSON.stringify(task.task_id)},"status":"${task.status}","results":`;
    const after = `,"result_paths":${JSON.stringify(paths)}}`;
    const deadline = new AbortController();
    const cancelTimer = this.context.clock.schedule(this.context.config.callback_timeout_seconds * 1000, () =>
      deadline.abort(new FloeError('deadline_exceeded', 'the callback took longer than callback_timeout_seconds')),
    );
    try {
      const status = await this.transport.post({
        url: row.url,
        signal: AbortSignal.any([deadline.signal, this.context.closing]),
        headers: {
          'content-type': 'application/json',
          'content-length': String(resultListLength(before, results, after)),
          'idempotency-key': `floe-task-${row.task_id}`,
        },
        body: resultListBytes(before, results, after, this.context.blobs),
      });
      if (status < 200 || status > 299) {
        throw new FloeError('peer_unreachable', `the callback was answered with status ${status}`);
      }
    } finally {
      cancelTimer();
    }
  }

  private load(taskId: string): Promise<{ task: TaskRow; results: ResultWithSummary[] }> {
    return this.context.store.transaction(async (tables) => {
      const task = await tables.tasks.get(taskId);
      if (task === undefined) throw new Error(`a callback names task ${taskId}, which is not stored`);
      return { task, results: await tables.results.ofTask(taskId) };
    });
  }
}
