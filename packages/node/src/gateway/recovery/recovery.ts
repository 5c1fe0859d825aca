import { rm, unlink } from 'node:fs/promises';
import { basename } from 'node:path';
import { attemptKey, indexSegment, type RecordLocation, type RecordReading, readRecords } from '@floe-rl/capture';
import type { DeliveredResult } from '@floe-rl/client';
import { asFloeError, type Backoff, backoffMs, type Clock, FloeError, sleep } from '@floe-rl/core';
import { runtimeSpecSchema } from '@floe-rl/core/schema';
import type { Logger } from '@floe-rl/observe';
import { Attempt } from '../session/attempt.ts';
import { isFinalRefusal } from '../session/failure.ts';
import { partialResultOf } from '../session/partial-result.ts';
import type { PostrunInput } from '../session/postrun-stage.ts';
import { type AttemptRecord, keyOfPath, quarantine, readRecord } from './attempt-records.ts';

/**
 * Backoff between two rounds in which recovered attempts are delivered. The first pause is short because the server may only be restarting;
 * the longest pause limits the load while the server stays unreachable.
 */
const RETRY: Backoff = { baseMs: 500, maxMs: 30_000 };

type RecoveryDeps = Pick<PostrunInput, 'builders' | 'engines' | 'nodeId'> & {
  readonly clock: Clock;
  readonly log: Logger;
  /** Paths of the attempt records that earlier processes left. */
  readonly records: readonly string[];
  /** Paths of the journal segments that earlier processes left. */
  readonly segments: readonly string[];
  readonly quarantineDir: string;
  /** Delivers the partial result of an attempt. Rejects as `NodeApi.deliverPartial` does. */
  readonly deliver: (partial: DeliveredResult, signal: AbortSignal) => Promise<unknown>;
  readonly onRecovered: (outcome: 'delivered' | 'refused') => void;
  readonly onDamaged: (records: number) => void;
};

/** An attempt that an earlier process started and did not deliver. */
type InterruptedAttempt = {
  /** Path of the attempt's record file. */
  readonly path: string;
  /** Positions of the attempt's completions in the journal. */
  readonly locations: RecordLocation[];
  readonly segments: Set<Segment>;
};

type Segment = {
  readonly path: string;
  /** Interrupted attempts that have completions in this segment and are not yet delivered. */
  readonly undelivered: Set<InterruptedAttempt>;
  damaged: boolean;
};

/**
 * Delivers, in the background, partial results of the attempts that earlier gateway processes of this state directory did not finish. The
 * record and the journal segments of an attempt are removed only when the server has accepted or finally refused the partial result. If
 * this process ends earlier, the next process continues. Only one segment or one attempt is in memory at a time.
 */
export class Recovery {
  private readonly deps: RecoveryDeps;
  private readonly stopping = new AbortController();
  private running: Promise<void> = Promise.resolve();

  constructor(deps: RecoveryDeps) {
    this.deps = deps;
  }

  /** Starts to deliver the results of earlier gateway processes, and returns without waiting for that. */
  start(): void {
    this.running = this.run().catch((error: unknown) => {
      if (this.stopping.signal.aborted) return;
      this.deps.log.error(
        { error: asFloeError(error).message },
        'the attempts of earlier gateway processes could not be recovered',
      );
    });
  }

  /**
   * Stops the deliveries and resolves when they have stopped. The next process that uses this state directory makes the remaining
   * deliveries.
   */
  async close(): Promise<void> {
    this.stopping.abort(new FloeError('not_ready', 'the node is shutting down'));
    await this.running;
  }

  /** Resolves when the partial result of every attempt is delivered or refused, or when the recovery has been closed. */
  get done(): Promise<void> {
    return this.running;
  }

  private async run(): Promise<void> {
    const { log, records } = this.deps;
    const interrupted = records.map((path): InterruptedAttempt => ({ path, locations: [], segments: new Set() }));
    if (interrupted.length > 0) {
      log.info({ attempts: interrupted.length }, 'recovering the attempts of an earlier gateway process');
    }
    await this.index(interrupted);
    const { signal } = this.stopping;
    let fruitless = 1;
    for (let pending = interrupted; pending.length > 0; ) {
      const failed: InterruptedAttempt[] = [];
      for (const entry of pending) {
        signal.throwIfAborted();
        if (await this.tryRecover(entry)) await this.removeRecords(entry);
        else failed.push(entry);
      }
      if (failed.length > 0) await sleep(this.deps.clock, backoffMs(RETRY, fruitless), signal);
      fruitless = failed.length < pending.length ? 1 : fruitless + 1;
      pending = failed;
    }
  }

  /**
   * Calls {@link recover}. Resolves with false when {@link recover} throws, so that an attempt that cannot be read does not delay other
   * attempts.
   */
  private async tryRecover(entry: InterruptedAttempt): Promise<boolean> {
    try {
      return await this.recover(entry);
    } catch (thrown) {
      this.stopping.signal.throwIfAborted();
      this.deps.log.warn({ path: entry.path, error: asFloeError(thrown).message }, 'an attempt could not be recovered');
      return false;
    }
  }

  /** Finds the completions of the interrupted attempts in the journal, and removes the segments that contain none of them. */
  private async index(interrupted: readonly InterruptedAttempt[]): Promise<void> {
    const byKey = new Map<string, InterruptedAttempt[]>();
    for (const entry of interrupted) {
      const { sessionId, attempt } = keyOfPath(entry.path);
      const key = attemptKey(sessionId, attempt);
      byKey.set(key, [...(byKey.get(key) ?? []), entry]);
    }
    for (const path of this.deps.segments) {
      this.stopping.signal.throwIfAborted();
      const indexed = await indexSegment(path).catch((error: unknown) => this.keepSegment(path, error));
      if (indexed === null) continue;
      const { locations, tornBytes, damaged } = indexed;
      if (tornBytes > 0)
        this.deps.log.info(
          { segment: path, bytes: tornBytes },
          'a journal segment ends with an incomplete record, as after a crash',
        );
      if (damaged > 0) this.reportDamage(path, damaged);
      const segment: Segment = { path, undelivered: new Set(), damaged: damaged > 0 };
      for (const [key, found] of locations) {
        for (const entry of byKey.get(key) ?? []) {
          entry.locations.push(...found);
          entry.segments.add(segment);
          segment.undelivered.add(entry);
        }
      }
      await this.removeIfDone(segment);
    }
  }

  /** Delivers the partial result of one attempt. Resolves with false when the delivery must be retried. */
  private async recover(entry: InterruptedAttempt): Promise<boolean> {
    const { deliver, log, onRecovered, quarantineDir } = this.deps;
    let record: AttemptRecord;
    try {
      record = await readRecord(entry.path);
    } catch (thrown) {
      const error = asFloeError(thrown);
      if (entry.locations.length === 0) {
        // A crash interrupted the write of this record, before any process was started for the attempt.
        log.info({ path: entry.path }, 'an attempt had not started yet; its incomplete record is removed');
        return true;
      }
      const kept = await quarantine(entry.path, quarantineDir);
      for (const segment of entry.segments) segment.damaged = true;
      this.reportDamage(kept, 1);
      log.warn(
        { path: kept, error: error.message },
        'a damaged attempt record and its segments are kept in quarantine',
      );
      return true;
    }
    const { task_id, session_id, attempt, epoch } = record.lease;
    const names = { task_id, session_id, attempt, epoch };
    const reading = await readRecords(entry.locations);
    const partial = await this.partialResult(record, reading);
    try {
      await deliver(partial, this.stopping.signal);
      log.info({ ...names, completions: reading.completions.length }, 'delivered the partial result of an attempt');
      onRecovered('delivered');
    } catch (thrown) {
      this.stopping.signal.throwIfAborted();
      const error = asFloeError(thrown, 'peer_unreachable');
      if (!isFinalRefusal(error)) {
        log.warn(
          { ...names, code: error.code, error: error.message },
          'a partial result was not delivered; it is retried',
        );
        return false;
      }
      log.info({ ...names, code: error.code }, 'the server refused a partial result; its records are removed');
      onRecovered('refused');
    }
    if (reading.undecodable > 0) {
      for (const segment of entry.segments) segment.damaged = true;
      this.reportDamage(entry.path, reading.undecodable);
    }
    return true;
  }

  private async partialResult(
    record: AttemptRecord,
    { completions, undecodable }: RecordReading,
  ): Promise<DeliveredResult> {
    const { clock, builders, engines, nodeId } = this.deps;
    const { lease } = record;
    const attempt = new Attempt(lease, lease.task.runtime ?? runtimeSpecSchema.parse({}), clock, () => {});
    const last = completions.at(-1);
    const reason = new FloeError(
      'node_died',
      `the gateway process that ran attempt ${lease.attempt} on node ${record.node_id} died; ${completions.length} ` +
        'model calls were recorded before its end',
      { node_id: record.node_id, instance: record.instance, damaged_records: undecodable },
    );
    const { summary, ...parts } = await partialResultOf(attempt, completions, { builders, engines, nodeId }, reason);
    // The total duration in the summary counts from the creation of the `Attempt` object above, which is only a moment ago. It is replaced
    // by the time that the attempt ran in the earlier process: from its start to its last completion.
    const total_ms = last === undefined ? 0 : Math.max(0, last.timestampMs + last.totalMs - record.begun_ms);
    return { ...parts, summary: { ...summary, timing: { ...summary.timing, total_ms } } };
  }

  private async removeRecords(entry: InterruptedAttempt): Promise<void> {
    await rm(entry.path, { force: true });
    for (const segment of entry.segments) {
      segment.undelivered.delete(entry);
      await this.removeIfDone(segment);
    }
  }

  /** Removes a journal segment when all attempts with completions in it are delivered. A damaged segment is moved to quarantine instead. */
  private async removeIfDone(segment: Segment): Promise<void> {
    if (segment.undelivered.size > 0) return;
    try {
      if (!segment.damaged) await unlink(segment.path);
      else {
        const kept = await quarantine(segment.path, this.deps.quarantineDir);
        this.deps.log.warn({ path: kept }, 'a damaged journal segment is kept in quarantine');
      }
    } catch (error) {
      this.keepSegment(segment.path, error);
    }
  }

  /**
   * Logs that a journal segment cannot be read or removed. The segment stays for the next process, and recovery continues with the other
   * segments.
   */
  private keepSegment(path: string, error: unknown): null {
    this.deps.log.warn(
      { path, error: asFloeError(error).message },
      'a journal segment cannot be read or removed; it stays for the next process',
    );
    return null;
  }

  private reportDamage(path: string, records: number): void {
    this.deps.log.warn({ file: basename(path), records }, 'records of an earlier gateway process are damaged');
    this.deps.onDamaged(records);
  }
}
