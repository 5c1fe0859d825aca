import { isoNow } from '../../core/clock.ts';
import { asFloeError, FloeError } from '../../core/errors.ts';
import type { Span, Tracer } from '../../core/tracing.ts';
import type { TaskRequest } from '../../schema/index.ts';
import type { CallbackRow, TaskRow } from '../../store/index.ts';
import { change, type RolloutContext } from '../context.ts';
import { taskResults } from '../tasks/views.ts';
import { checkCallbackUrl } from './address.ts';
import { callbackBody } from './payload.ts';
import { idempotencyKey, messageId, signatureHeaders } from './signature.ts';
import type { CallbackTransport } from './transport.ts';

/** How often the outbox is looked at for retries that have come due. */
const LOOK_AGAIN_MS = 500;
/** Renewals of a claim within its time: one that the store is slow to take must not lose it. */
const RENEWALS = 3;
/** The trainer does not want it any more. */
const GONE = 410;

/**
 * Posts finished tasks to their `callback_url` until the trainer answers 2xx, or 410 to be left alone. What is still to be
 * delivered lies in the store, so a restart goes on, and another server takes over from one that was killed. The trainer may
 * see a result more than once, always under the same `idempotency-key`.
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
    const { store, time, config, closing, wakeups } = this.context;
    const free = config.callback_parallel - this.inFlight.size;
    if (free <= 0 || closing.aborted) return false;
    const due = await store.transaction((tables) =>
      tables.callbacks.claimDue(time.nowMs(), free, this.claimedUntilMs()),
    );
    const fresh = due.filter((row) => !this.inFlight.has(row.task_id));
    for (const row of fresh) {
      const delivery = this.whileStoreWorks(() => this.tryOnce(row)).finally(() => {
        this.inFlight.delete(row.task_id);
        wakeups.wake('callbacks');
      });
      this.inFlight.set(row.task_id, delivery);
    }
    return fresh.length > 0;
  }

  private claimedUntilMs(): number {
    return this.context.time.nowMs() + this.context.config.callback_claim_seconds * 1000;
  }

  private async tryOnce(row: CallbackRow): Promise<void> {
    const { log, closing } = this.context;
    const endClaim = this.keepClaimed(row.task_id);
    const answer = await this.post(row).catch((thrown: unknown) => asFloeError(thrown, 'peer_unreachable'));
    await endClaim();
    if (typeof answer === 'number' && (isAcknowledged(answer) || answer === GONE)) {
      if (answer === GONE)
        log.warn({ task_id: row.task_id }, 'a trainer answered 410: its callback is not tried again');
      return this.recordEnd(row, answer);
    }
    // Broken off by this server, which says nothing of the trainer: the next one goes on at once.
    if (closing.aborted) return this.recordFailure(row, { next_try_ms: this.context.time.nowMs() });
    const tries = row.tries + 1;
    const reason = typeof answer === 'number' ? `answered with status ${answer}` : answer.message;
    log.warn({ task_id: row.task_id, tries, error: reason }, 'a callback failed and will be tried again');
    this.context.counters.add('callbacks_failed');
    const nextTryMs = this.context.time.nowMs() + this.backoffMs(tries);
    await this.recordFailure(row, { tries, next_try_ms: nextTryMs, last_error: reason });
  }

  /** The trainer has the results, or wants to hear no more of them; neither is kept back for it any longer. */
  private async recordEnd(row: CallbackRow, status: number): Promise<void> {
    const deliveredAt = isoNow(this.context.clock);
    const lastError = status === GONE ? `answered with status ${GONE}` : null;
    await change(this.context, async (tables, effects) => {
      const stored = await tables.callbacks.get(row.task_id);
      if (stored === undefined || stored.delivered_at !== null) return;
      const patch = { tries: stored.tries + 1, delivered_at: deliveredAt, last_error: lastError };
      await tables.callbacks.update(row.task_id, patch);
      await tables.results.collectTask(row.task_id);
      effects.counted.push(status === GONE ? 'callbacks_failed' : 'callbacks_delivered');
      // Collected results may let sessions of this trainer go out again.
      effects.topics.add('queue');
    });
  }

  private async recordFailure(row: CallbackRow, patch: Partial<CallbackRow>): Promise<void> {
    await this.context.store.transaction(async (tables) => {
      const stored = await tables.callbacks.get(row.task_id);
      // Another server may have delivered it while this one stood still.
      if (stored?.delivered_at === null) await tables.callbacks.update(row.task_id, patch);
    });
  }

  /** Holds other servers off a callback; returns the end of that, which waits for a renewal that is under way. */
  private keepClaimed(taskId: string): () => Promise<void> {
    const { clock, config, store } = this.context;
    let renewal: Promise<unknown> = Promise.resolve();
    let cancelTimer = (): void => {};
    let ended = false;
    const renewLater = (): void => {
      cancelTimer = clock.schedule((config.callback_claim_seconds * 1000) / RENEWALS, () => {
        renewal = this.whileStoreWorks(() =>
          store.transaction((tables) => tables.callbacks.update(taskId, { next_try_ms: this.claimedUntilMs() })),
        ).finally(() => {
          if (!ended) renewLater();
        });
      });
    };
    renewLater();
    return async () => {
      ended = true;
      cancelTimer();
      await renewal;
    };
  }

  /** Exponential, with half of it random so that many callbacks to a trainer that came back do not arrive at once. */
  private backoffMs(tries: number): number {
    const { callback_backoff_seconds: base, callback_backoff_max_seconds: max } = this.context.config;
    return Math.min(max, base * 2 ** Math.min(tries - 1, 30)) * 1000 * (0.5 + this.context.random() / 2);
  }

  /** Resolves to the status of the trainer's answer. The body is read twice, to sign and to send it, and never held whole. */
  private async post(row: CallbackRow): Promise<number> {
    const { config, clock, blobs, closing } = this.context;
    checkCallbackUrl(config, row.url);
    const { task, unusable } = await this.load(row.task_id);
    const all = { head: task, upToCursor: Number.POSITIVE_INFINITY };
    const body = await callbackBody(task, unusable, () => taskResults(this.context, all));
    const span = this.spanOf(row, task);
    const seconds = Math.floor(clock.nowMs() / 1000);
    const signed = await signatureHeaders(config.callback_secrets, messageId(task), seconds, body.bytes(blobs));
    const deadline = new AbortController();
    const cancelTimer = clock.schedule(config.callback_timeout_seconds * 1000, () =>
      deadline.abort(new FloeError('deadline_exceeded', 'the callback took longer than callback_timeout_seconds')),
    );
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
        body: body.bytes(blobs),
        signal: AbortSignal.any([deadline.signal, closing]),
      });
      span.set({ 'http.response.status_code': status });
      span.end(isAcknowledged(status) || status === GONE ? null : `answered with status ${status}`);
      return status;
    } catch (thrown) {
      span.end(asFloeError(thrown, 'peer_unreachable').message);
      throw thrown;
    } finally {
      cancelTimer();
    }
  }

  /** One for each try. */
  private spanOf(row: CallbackRow, task: TaskRow): Span {
    const { traceparent = null, policy_version } = JSON.parse(task.request) as Partial<TaskRequest>;
    const attributes = { task_id: row.task_id, attempt: row.tries + 1, policy_version: policy_version ?? null };
    return this.tracer.start('callback', { parent: traceparent, id: row.task_id }, attributes, 'client');
  }

  private load(taskId: string) {
    return this.context.store.read(async (tables) => {
      const task = await tables.tasks.get(taskId);
      if (task === undefined) throw new Error(`a callback names task ${taskId}, which is not stored`);
      return { task, unusable: await tables.sessions.unusable(taskId) };
    });
  }
}

function isAcknowledged(status: number): boolean {
  return status >= 200 && status <= 299;
}
