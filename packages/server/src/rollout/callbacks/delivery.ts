import { abortAfter, asFloeError, FloeError, isoNow, jitteredBackoffMs, type Span, type Tracer } from '@floe-rl/core';
import type { TaskRequest } from '@floe-rl/core/schema';
import type { CallbackRow, TaskRow } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { polarCallbackBody } from '../polar/results.ts';
import { taskResults } from '../tasks/views.ts';
import { runTransaction } from '../transaction.ts';
import { postponeWhileUnavailable } from '../watched-store.ts';
import { checkOutboundUrl } from './address.ts';
import { type CallbackBody, callbackBody, idempotencyKey, messageId, signatureHeaders } from './payload.ts';
import type { CallbackTransport } from './transport.ts';

/** Interval at which the store is checked for callbacks whose next try is due. */
const POLL_INTERVAL_MS = 500;
/**
 * Number of times that a server renews its claim on a callback within the time of the claim. With several renewals, the claim is not lost
 * when the store delays one of them.
 */
const RENEWALS_PER_CLAIM = 3;
/** HTTP status of a trainer's callback endpoint that declines further tries. */
const HTTP_GONE = 410;

/**
 * Posts the results of ended tasks to their `callback_url` until the trainer answers with 2xx, or with 410 to refuse further tries. Pending
 * callbacks are rows of the store. A restarted server continues with them, and when a server dies, another server takes over its callbacks. A
 * trainer may receive a result more than once, always with the same `idempotency-key`.
 */
export class CallbackDelivery {
  private readonly context: RolloutContext;
  private readonly transport: CallbackTransport;
  private readonly tracer: Tracer;
  private readonly inFlight = new Map<string, Promise<unknown>>();

  constructor(context: RolloutContext, transport: CallbackTransport, tracer: Tracer) {
    this.context = context;
    this.transport = transport;
    this.tracer = tracer;
  }

  /** Delivers the callbacks of ended tasks until the server closes. */
  async run(): Promise<void> {
    const { wakeups, closing } = this.context;
    while (!closing.aborted) {
      await wakeups.poll('callbacks', POLL_INTERVAL_MS, closing, async () =>
        (await this.whileStoreWorks(() => this.startDue())) ? true : undefined,
      );
    }
    await Promise.all(this.inFlight.values());
    await this.transport.close();
  }

  private whileStoreWorks<T>(work: () => Promise<T>): Promise<T | undefined> {
    return postponeWhileUnavailable(this.context.log, 'callbacks wait', work);
  }

  /** Starts the delivery of as many due callbacks as may run concurrently. Returns whether it started any. */
  private async startDue(): Promise<boolean> {
    const { store, time, config, closing, wakeups } = this.context;
    const free = config.callback_parallel - this.inFlight.size;
    if (closing.aborted) return false;
    const due = await store.transaction((tables) =>
      tables.callbacks.claimDue(time.nowMs(), free, this.claimedUntilMs()),
    );
    const starting = due.filter((row) => !this.inFlight.has(row.task_id));
    for (const row of starting) {
      const delivery = this.whileStoreWorks(() => this.deliver(row)).finally(() => {
        this.inFlight.delete(row.task_id);
        wakeups.wake('callbacks');
      });
      this.inFlight.set(row.task_id, delivery);
    }
    return starting.length > 0;
  }

  private claimedUntilMs(): number {
    return this.context.time.nowMs() + this.context.config.callback_claim_seconds * 1000;
  }

  /** Tries once to deliver a callback, and stores whether it succeeded. */
  private async deliver(row: CallbackRow): Promise<void> {
    const { log, closing } = this.context;
    const endClaim = this.keepClaimed(row.task_id);
    const answer = await this.post(row).catch((thrown: unknown) => asFloeError(thrown, 'peer_unreachable'));
    await endClaim();
    if (typeof answer === 'number' && (isAcknowledged(answer) || answer === HTTP_GONE)) {
      if (answer === HTTP_GONE)
        log.warn({ task_id: row.task_id }, 'a trainer answered 410, so its callback is not retried');
      return this.recordEnd(row, answer);
    }
    // A server that closes aborts its requests. The trainer has not failed then, so another server may retry immediately.
    if (closing.aborted) return this.recordFailure(row, { next_try_ms: this.context.time.nowMs() });
    const tries = row.tries + 1;
    const reason = typeof answer === 'number' ? `answered with status ${answer}` : answer.message;
    log.warn({ task_id: row.task_id, tries, error: reason }, 'a callback failed and will be retried');
    this.context.counters.add('callbacks_failed');
    const nextTryMs = this.context.time.nowMs() + this.retryDelayMs(tries);
    await this.recordFailure(row, { tries, next_try_ms: nextTryMs, last_error: reason });
  }

  /**
   * Records that the delivery of a callback has ended, because the trainer has the results or declines further tries. In both cases the
   * results count as collected.
   */
  private async recordEnd(row: CallbackRow, status: number): Promise<void> {
    const deliveredAt = isoNow(this.context.clock);
    const lastError = status === HTTP_GONE ? `answered with status ${HTTP_GONE}` : null;
    await runTransaction(this.context, async (transaction) => {
      const { tables } = transaction;
      const stored = await tables.callbacks.get(row.task_id);
      if (stored === undefined || stored.delivered_at !== null) return;
      const patch = { tries: stored.tries + 1, delivered_at: deliveredAt, last_error: lastError };
      await tables.callbacks.update(row.task_id, patch);
      await tables.results.collectTasks([row.task_id]);
      transaction.count(status === HTTP_GONE ? 'callbacks_failed' : 'callbacks_delivered');
      // While a trainer has too many uncollected results, nodes get no sessions of it. These results now count as collected, so waiting
      // lease requests are woken.
      transaction.wake('queue');
    });
  }

  private async recordFailure(row: CallbackRow, patch: Partial<CallbackRow>): Promise<void> {
    await this.context.store.transaction(async (tables) => {
      const stored = await tables.callbacks.get(row.task_id);
      // Another server may have delivered the callback while this server was suspended. In that case the row already records a success and
      // is not changed.
      if (stored?.delivered_at === null) await tables.callbacks.update(row.task_id, patch);
    });
  }

  /**
   * Renews this server's claim on a callback regularly. Returns a function that stops the renewals; it resolves when a renewal in progress
   * has ended.
   */
  private keepClaimed(taskId: string): () => Promise<void> {
    const { clock, config, store } = this.context;
    let renewal: Promise<unknown> = Promise.resolve();
    let cancelTimer = (): void => {};
    let isEnded = false;
    const renewLater = (): void => {
      cancelTimer = clock.schedule((config.callback_claim_seconds * 1000) / RENEWALS_PER_CLAIM, () => {
        renewal = this.whileStoreWorks(() =>
          store.transaction((tables) => tables.callbacks.update(taskId, { next_try_ms: this.claimedUntilMs() })),
        ).finally(() => {
          if (!isEnded) renewLater();
        });
      });
    };
    renewLater();
    return async () => {
      isEnded = true;
      cancelTimer();
      await renewal;
    };
  }

  /**
   * Returns the delay in milliseconds before the next try. It is random within limits, so that the callbacks to a trainer that was down do
   * not all arrive together once the trainer is back.
   */
  private retryDelayMs(tries: number): number {
    const { callback_backoff_seconds: base, callback_backoff_max_seconds: max } = this.context.config;
    return jitteredBackoffMs({ baseMs: base * 1000, maxMs: max * 1000 }, tries, this.context.random);
  }

  /**
   * Posts a callback, and resolves to the HTTP status of the trainer's answer. The body is read from the store twice, once to sign it and
   * once to send it, and is never in memory as a whole.
   */
  private async post(row: CallbackRow): Promise<number> {
    const { config, clock, closing } = this.context;
    checkOutboundUrl(config, row.url, 'callback_url');
    const { task, body } = await this.load(row.task_id);
    const span = this.startSpan(row, task);
    const seconds = Math.floor(clock.nowMs() / 1000);
    const signed = await signatureHeaders(config.callback_secrets, messageId(task), seconds, body.bytes());
    const timeout = () => new FloeError('deadline_exceeded', 'the callback took longer than callback_timeout_seconds');
    const deadline = abortAfter(clock, config.callback_timeout_seconds * 1000, timeout, closing);
    try {
      const status = await this.transport.post({
        url: row.url,
        headers: {
          'content-type': 'application/json',
          'content-length': String(body.length),
          'idempotency-key': idempotencyKey(row),
          ...signed,
          ...(span.traceparent === null ? {} : { traceparent: span.traceparent }),
        },
        body: body.bytes(),
        signal: deadline.signal,
      });
      span.set({ 'http.response.status_code': status });
      span.end(isAcknowledged(status) || status === HTTP_GONE ? null : `answered with status ${status}`);
      return status;
    } catch (thrown) {
      span.end(asFloeError(thrown, 'peer_unreachable').message);
      throw thrown;
    } finally {
      deadline.release();
    }
  }

  /** Starts the tracing span of one try to deliver a callback; every try has a separate span. */
  private startSpan(row: CallbackRow, task: TaskRow): Span {
    const { traceparent = null, policy_version } = JSON.parse(task.request) as Partial<TaskRequest>;
    const attributes = { task_id: row.task_id, attempt: row.tries + 1, policy_version: policy_version ?? null };
    return this.tracer.start('callback', { parent: traceparent, id: row.task_id }, attributes, 'client');
  }

  private async load(taskId: string): Promise<{ task: TaskRow; body: CallbackBody }> {
    const { task, unusable, alias } = await this.context.store.read(async (tables) => {
      const found = await tables.tasks.get(taskId);
      if (found === undefined) throw new Error(`a callback names task ${taskId}, which is not stored`);
      return {
        task: found,
        unusable: await tables.sessions.unusable(taskId),
        alias: await tables.aliases.ofTask(taskId),
      };
    });
    if (alias?.api === 'polar') return { task, body: await polarCallbackBody(this.context, task, alias.alias) };
    const results = () => taskResults(this.context, taskId, Number.POSITIVE_INFINITY);
    return { task, body: await callbackBody(task, unusable, results, this.context.trajectories) };
  }
}

function isAcknowledged(status: number): boolean {
  return status >= 200 && status <= 299;
}
