import { rm, unlink } from 'node:fs/promises';
import { basename } from 'node:path';
import type { DeliveredResult } from '../../client/node-api.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import { asFloeError, FloeError } from '../../core/errors.ts';
import type { Logger } from '../../observe/log.ts';
import {
  attemptKey,
  indexSegment,
  type RecordLocation,
  type RecordReading,
  readRecords,
} from '../../proxy/journal/journal-index.ts';
import { runtimeSpecSchema } from '../../schema/index.ts';
import { Attempt } from '../session/attempt.ts';
import { remainsOf } from '../session/partial-result.ts';
import type { PostrunInput } from '../session/postrun-stage.ts';
import { isVerdict } from '../session/verdict.ts';
import { type AttemptRecord, keyOfPath, quarantine, readRecord } from './attempt-records.ts';

/** Between two tries, doubling: a server that is restarting is back soon, one that is away for long is not pestered. */
const RETRY = { firstMs: 500, maxMs: 30_000 };

export type RecoveryDeps = PostrunInputParts & {
  readonly clock: Clock;
  readonly log: Logger;
  /** Files of attempt records that dead processes left. */
  readonly records: readonly string[];
  /** Journal segments that they left. */
  readonly segments: readonly string[];
  readonly quarantineDir: string;
  /** Hands in the remains of an attempt; rejects as `NodeApi.deliverPartial`. */
  readonly deliver: (remains: DeliveredResult, signal: AbortSignal) => Promise<unknown>;
  readonly onRecovered: (outcome: 'delivered' | 'refused') => void;
  readonly onDamaged: (records: number) => void;
};

type PostrunInputParts = Pick<PostrunInput, 'builders' | 'engines' | 'nodeId'>;

/** An attempt that a dead process had begun. */
type Left = { readonly path: string; readonly places: RecordLocation[]; readonly segments: Set<Segment> };

type Segment = {
  readonly path: string;
  /** Attempts with records in it that are not done with. */
  readonly waiting: Set<Left>;
  damaged: boolean;
};

/**
 * Hands in what dead gateway processes of this state directory had recorded, in the background. A record and its segments go
 * away only when the server has them or does not want them; whatever ends this process before leaves all of it for the next.
 * Of the leftovers it keeps one segment or one attempt in memory at a time.
 */
export class Recovery {
  private readonly deps: RecoveryDeps;
  private readonly stopping = new AbortController();
  private running: Promise<void> = Promise.resolve();

  constructor(deps: RecoveryDeps) {
    this.deps = deps;
  }

  /** Returns at once. */
  start(): void {
    this.running = this.run().catch((error: unknown) => {
      if (this.stopping.signal.aborted) return;
      this.deps.log.error({ error: asFloeError(error).message }, 'what dead gateways left could not be recovered');
    });
  }

  /** Resolves when nothing is under way any more; what is not handed in stays for the next process. */
  async close(): Promise<void> {
    this.stopping.abort(new FloeError('not_ready', 'the node is shutting down'));
    await this.running;
  }

  /** Resolves when everything is handed in, or the recovery is closed. */
  get done(): Promise<void> {
    return this.running;
  }

  private async run(): Promise<void> {
    const { log, records } = this.deps;
    const left = records.map((path): Left => ({ path, places: [], segments: new Set() }));
    if (left.length > 0) log.info({ attempts: left.length }, 'recovering the attempts of a dead gateway');
    await this.index(left);
    const { signal } = this.stopping;
    for (let waiting = left, delayMs = RETRY.firstMs; waiting.length > 0; ) {
      const again: Left[] = [];
      for (const entry of waiting) {
        signal.throwIfAborted();
        if (await this.tried(entry)) await this.forget(entry);
        else again.push(entry);
      }
      if (again.length > 0) await sleep(this.deps.clock, delayMs, signal);
      delayMs = again.length < waiting.length ? RETRY.firstMs : Math.min(2 * delayMs, RETRY.maxMs);
      waiting = again;
    }
  }

  /** As {@link recover}; what cannot be read now is worth another try, and holds up no other attempt. */
  private async tried(entry: Left): Promise<boolean> {
    try {
      return await this.recover(entry);
    } catch (thrown) {
      this.stopping.signal.throwIfAborted();
      this.deps.log.warn({ path: entry.path, error: asFloeError(thrown).message }, 'an attempt could not be recovered');
      return false;
    }
  }

  /** Finds the records of the attempts, and removes the segments that hold none. */
  private async index(left: readonly Left[]): Promise<void> {
    const byKey = new Map<string, Left[]>();
    for (const entry of left) {
      const { sessionId, attempt } = keyOfPath(entry.path);
      const key = attemptKey(sessionId, attempt);
      byKey.set(key, [...(byKey.get(key) ?? []), entry]);
    }
    for (const path of this.deps.segments) {
      this.stopping.signal.throwIfAborted();
      const indexed = await indexSegment(path).catch((error: unknown) => this.leave(path, error));
      if (indexed === null) continue;
      const { locations, tornBytes, damaged } = indexed;
      if (tornBytes > 0) this.deps.log.info({ segment: path, bytes: tornBytes }, 'a write that a crash cut off');
      if (damaged > 0) this.tellDamaged(path, damaged);
      const segment: Segment = { path, waiting: new Set(), damaged: damaged > 0 };
      for (const [key, found] of locations) {
        for (const entry of byKey.get(key) ?? []) {
          entry.places.push(...found);
          entry.segments.add(segment);
          segment.waiting.add(entry);
        }
      }
      await this.removeIfDone(segment);
    }
  }

  /** True when the attempt is done with; false when it is worth another try. */
  private async recover(entry: Left): Promise<boolean> {
    const { deliver, log, onRecovered, quarantineDir } = this.deps;
    let record: AttemptRecord;
    try {
      record = await readRecord(entry.path);
    } catch (thrown) {
      const error = asFloeError(thrown);
      if (entry.places.length === 0) {
        // Cut off while it was written: before anything was made for the attempt.
        log.info({ path: entry.path }, 'an attempt had not begun yet');
        return true;
      }
      const kept = await quarantine(entry.path, quarantineDir);
      for (const segment of entry.segments) segment.damaged = true;
      this.tellDamaged(kept, 1);
      log.warn({ path: kept, error: error.message }, 'an attempt record is damaged; what was recorded of it is kept');
      return true;
    }
    const { task_id, session_id, attempt, epoch } = record.lease;
    const names = { task_id, session_id, attempt, epoch };
    const reading = await readRecords(entry.places);
    const remains = await this.remains(record, reading);
    try {
      await deliver(remains, this.stopping.signal);
      log.info({ ...names, completions: reading.completions.length }, 'recovered what an attempt had recorded');
      onRecovered('delivered');
    } catch (thrown) {
      this.stopping.signal.throwIfAborted();
      const error = asFloeError(thrown, 'peer_unreachable');
      if (!isVerdict(error)) {
        log.warn({ ...names, code: error.code, error: error.message }, 'the server did not take a recovery');
        return false;
      }
      log.info({ ...names, code: error.code }, 'nobody wants what an attempt had recorded');
      onRecovered('refused');
    }
    if (reading.undecodable > 0) {
      for (const segment of entry.segments) segment.damaged = true;
      this.tellDamaged(entry.path, reading.undecodable);
    }
    return true;
  }

  private async remains(record: AttemptRecord, { completions, undecodable }: RecordReading): Promise<DeliveredResult> {
    const { clock, builders, engines, nodeId } = this.deps;
    const { lease } = record;
    const attempt = new Attempt(lease, lease.task.runtime ?? runtimeSpecSchema.parse({}), clock, () => {});
    const last = completions.at(-1);
    const cut = new FloeError(
      'node_died',
      `the gateway process that ran attempt ${lease.attempt} on node ${record.node_id} died; ${completions.length} ` +
        'model calls were recorded before',
      { node_id: record.node_id, instance: record.instance, damaged_records: undecodable },
    );
    const { summary, ...parts } = await remainsOf(attempt, completions, { builders, engines, nodeId }, cut);
    // The dead process's time: from the lease to its last sign of life.
    const total_ms = last === undefined ? 0 : Math.max(0, last.timestampMs + last.totalMs - record.begun_ms);
    return { ...parts, summary: { ...summary, timing: { ...summary.timing, total_ms } } };
  }

  private async forget(entry: Left): Promise<void> {
    await rm(entry.path, { force: true });
    for (const segment of entry.segments) {
      segment.waiting.delete(entry);
      await this.removeIfDone(segment);
    }
  }

  private async removeIfDone(segment: Segment): Promise<void> {
    if (segment.waiting.size > 0) return;
    try {
      if (!segment.damaged) await unlink(segment.path);
      else {
        const kept = await quarantine(segment.path, this.deps.quarantineDir);
        this.deps.log.warn({ path: kept }, 'a damaged journal segment is kept');
      }
    } catch (error) {
      this.leave(segment.path, error);
    }
  }

  /** One that cannot be read or removed stays for the next process; the others are none the worse for it. */
  private leave(path: string, error: unknown): null {
    this.deps.log.warn({ path, error: asFloeError(error).message }, 'a journal segment is left where it is');
    return null;
  }

  private tellDamaged(path: string, records: number): void {
    this.deps.log.warn({ file: basename(path), records }, 'records of dead gateways are damaged');
    this.deps.onDamaged(records);
  }
}
