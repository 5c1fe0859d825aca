import type { FloeClient } from '@floe-rl/client';
import { type Clock, FloeError, linkAbort, raceAbort, Semaphore, sleep } from '@floe-rl/core';
import type { Row } from '@floe-rl/core/rows';
import type { SessionResult, TaskRequest } from '@floe-rl/core/schema';
import type { Condition } from './acceptance-conditions.ts';
import type { JournalRecord, LineLocation, SampleId } from './journal.ts';
import { sampleOf, taskIdOf } from './row-task.ts';
import { journaledSample, RowPlan, type SampleIndex, type SamplePolicy } from './samples.ts';

/** A row of the data set with its number, from 0. */
export type NumberedRow = { readonly number: number; readonly row: Row };

/** The calls of the server that a run makes. */
type RunClient = Pick<FloeClient, 'submit' | 'task' | 'taskResults' | 'results'>;

export type SamplingOptions = {
  readonly client: RunClient;
  readonly clock: Clock;
  readonly run: string;
  /** Trainer of the tasks. The results of this trainer are read. */
  readonly trainer: string;
  /** The server stores the position of the last result in the journal under this name. */
  readonly consumer: string;
  readonly policy: SamplePolicy;
  /** Maximum number of sessions that are submitted and not finished. */
  readonly concurrency: number;
  readonly conditions: readonly Condition[];
  /** Whether a row belongs to this shard. Results of other rows are left to other shards. */
  readonly ownsRow: (row: number) => boolean;
  /** Makes the task of a sample. */
  readonly taskOf: (row: Row, id: SampleId) => TaskRequest;
  readonly journal: { append(record: JournalRecord): Promise<LineLocation> };
  /** Called after each sample that was added to the journal. */
  readonly onSample?: () => void;
  /** Called when the server refuses the task of a row. */
  readonly onRefused?: (row: Row, error: FloeError) => void;
};

/**
 * Interval in milliseconds at which sessions without a result are compared with the server. The comparison finds results that an earlier
 * process read, and tasks that the server has lost.
 */
const CHECK_INTERVAL_MS = 60_000;

/** Number of refused tasks after which a run ends when no task was accepted. The template is then wrong rather than the rows. */
const MAX_FIRST_REFUSALS = 5;

/** Codes of refusals that concern one row. Another row may be accepted. */
const REFUSALS: readonly string[] = [
  'bad_request',
  'schema_violation',
  'unsupported',
  'unknown_harness',
  'unknown_builder',
  'unknown_evaluator',
  'source_forbidden',
  'body_too_large',
];

type Running = { readonly id: SampleId; readonly row: Row; readonly plan: RowPlan };

/**
 * Generates the samples of the rows of one shard. A resumed run gives its tasks the same ids, so every sample is run once. A result is
 * acknowledged to the server only after it is in the journal.
 */
export class SamplingRun {
  private readonly options: SamplingOptions;
  private readonly index: SampleIndex;
  /** Submitted samples without a result, by the id of their task. */
  private readonly running = new Map<string, Running>();
  /** The rows that are not done. */
  private readonly plans = new Map<number, { readonly row: Row; readonly plan: RowPlan }>();
  /** Numbers of rows that may have a sample to submit. */
  private readonly ready = new Set<number>();
  /** Grants the right to write to the journal, so that a result that arrives twice is written once. */
  private readonly writing = new Semaphore(1);
  private wake: () => void = () => {};
  private acceptedTasks = 0;
  private refusedTasks = 0;

  constructor(options: SamplingOptions, index: SampleIndex) {
    this.options = options;
    this.index = index;
  }

  /** Number of sessions that are submitted and have no result in the journal. */
  get runningCount(): number {
    return this.running.size;
  }

  /**
   * Resolves when all rows have their samples in the journal. Rejects with the reason of `signal` when it aborts, and with the first error of
   * the server or the journal. Sessions that are running then continue, and a later run with the same journal receives their results.
   */
  async generate(rows: AsyncIterable<NumberedRow>, signal: AbortSignal): Promise<void> {
    const stop = linkAbort(signal);
    const finished = new Error('all samples are in the journal');
    const guard = async (work: Promise<void>): Promise<void> => {
      try {
        await work;
      } catch (thrown) {
        stop.abort(thrown);
      }
    };
    try {
      await Promise.all([
        guard(this.submitAll(rows, stop.signal).then(() => stop.abort(finished))),
        guard(this.collect(stop.signal)),
        guard(this.checkRegularly(stop.signal)),
      ]);
    } finally {
      stop.release();
    }
    if (stop.signal.reason !== finished) throw stop.signal.reason;
  }

  private async submitAll(rows: AsyncIterable<NumberedRow>, signal: AbortSignal): Promise<void> {
    const source = rows[Symbol.asyncIterator]();
    try {
      for (;;) {
        const changed = new Promise<void>((resolve) => {
          this.wake = resolve;
        });
        signal.throwIfAborted();
        const next = this.running.size < this.options.concurrency ? await this.nextSample(source) : null;
        if (next !== null) await this.submit(next, signal);
        else if (this.plans.size === 0) return;
        else await raceAbort(changed, signal);
      }
    } finally {
      await source.return?.();
    }
  }

  /** Returns a sample to submit, from a row that is in progress or else from the next row; `null` when there is none now. */
  private async nextSample(source: AsyncIterator<NumberedRow>): Promise<Running | null> {
    for (;;) {
      for (const number of this.ready) {
        const entry = this.plans.get(number);
        const id = entry?.plan.next() ?? null;
        if (entry !== undefined && id !== null) return { id, row: entry.row, plan: entry.plan };
        this.ready.delete(number);
      }
      const next = await source.next();
      if (next.done === true) return null;
      const { number, row } = next.value;
      const plan = new RowPlan(number, this.options.policy, this.index.ofRow(number));
      if (plan.isDone) continue;
      this.plans.set(number, { row, plan });
      this.ready.add(number);
    }
  }

  private async submit(sample: Running, signal: AbortSignal): Promise<void> {
    const { client, run, taskOf, journal, onRefused } = this.options;
    const taskId = taskIdOf(run, sample.id);
    this.running.set(taskId, sample);
    try {
      const reply = await client.submit(taskOf(sample.row, sample.id), signal);
      this.acceptedTasks++;
      // The results of a task that an earlier process submitted may have been read by that process.
      if (reply.duplicate && reply.status !== 'running') await this.fetch(taskId, signal);
    } catch (thrown) {
      if (!FloeError.is(thrown) || !REFUSALS.includes(thrown.code)) throw thrown;
      this.refusedTasks++;
      if (this.acceptedTasks === 0 && this.refusedTasks >= MAX_FIRST_REFUSALS) throw thrown;
      const { row } = sample.id;
      await journal.append({ kind: 'refused', row, message: thrown.message });
      this.index.refuse(row, thrown.message);
      onRefused?.(sample.row, thrown);
      this.running.delete(taskId);
      sample.plan.refuse();
      this.plans.delete(row);
      this.wake();
    }
  }

  /** Reads the results of the trainer's tasks until the signal aborts. */
  private async collect(signal: AbortSignal): Promise<void> {
    const { client, consumer, trainer } = this.options;
    for (let refusals = 0; ; ) {
      try {
        // The next result is requested after `save` has resolved, and this request moves the server's cursor.
        for await (const result of client.results({ consumer, trainer, signal })) {
          await this.save(result);
          refusals = 0;
        }
      } catch (thrown) {
        // A server that does not know the cursor has lost its store. Its results start from the beginning, and its tasks are missing.
        const isNewStore = FloeError.is(thrown) && thrown.code === 'schema_violation';
        if (!isNewStore || signal.aborted || ++refusals > 1) throw thrown;
        await this.check(signal);
      }
    }
  }

  private async checkRegularly(signal: AbortSignal): Promise<void> {
    for (;;) {
      await sleep(this.options.clock, CHECK_INTERVAL_MS, signal);
      await this.check(signal);
    }
  }

  /** Compares the samples without a result with the server: fetches missed results, and submits lost tasks. */
  private async check(signal: AbortSignal): Promise<void> {
    for (const [taskId, sample] of [...this.running]) {
      try {
        const { status } = await this.options.client.task(taskId, signal);
        if (status !== 'running') await this.fetch(taskId, signal);
      } catch (thrown) {
        if (!FloeError.is(thrown) || thrown.code !== 'not_found') throw thrown;
        if (this.running.has(taskId)) await this.submit(sample, signal);
      }
    }
  }

  private async fetch(taskId: string, signal: AbortSignal): Promise<void> {
    for (const result of await this.options.client.taskResults(taskId, signal)) await this.save(result);
  }

  /** Adds a result to the journal, unless it belongs to another run or shard, or is in the journal. */
  private async save(result: SessionResult): Promise<void> {
    const { run, conditions, journal, onSample, ownsRow } = this.options;
    const id = sampleOf(run, result);
    if (id === null || !ownsRow(id.row)) return;
    const release = await this.writing.acquire();
    try {
      if (this.index.has(id)) return;
      const location = await journal.append({ kind: 'result', ...id, result });
      const entry = journaledSample(id, result, conditions, location);
      this.index.add(entry);
      this.running.delete(taskIdOf(run, id));
      const plan = this.plans.get(id.row)?.plan;
      plan?.record(entry);
      if (plan?.isDone === true) this.plans.delete(id.row);
      else if (plan !== undefined) this.ready.add(id.row);
      this.wake();
    } finally {
      release();
    }
    onSample?.();
  }
}
