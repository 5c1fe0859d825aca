import { Counter, Gauge, Histogram, type Registry } from 'prom-client';

/** From a stub that answers at once to a reply of many thousand tokens. */
const CALL_SECONDS = [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900];
/** What floe adds is a fraction of a millisecond unless something waits or is rendered. */
const ADDED_SECONDS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30];
/** A write to a good disk takes tens of microseconds, to a sick one seconds. */
const SYNC_SECONDS = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1, 5];
/** A namespace starts in milliseconds; an image that has to be fetched takes minutes. */
const START_SECONDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300];
const MS_PER_SECOND = 1000;

/** A model call that has ended. Milliseconds. */
export type MeasuredCall = {
  readonly dialect: string;
  readonly engineId: string | null;
  readonly code: string;
  readonly totalMs: number;
  readonly engineMs: number | null;
};

/** What model calls, the capture journal and sandboxes tell of themselves. */
export class CallMetrics {
  private readonly requests: Counter<'dialect' | 'engine' | 'code'>;
  private readonly seconds: Histogram<'dialect' | 'engine'>;
  private readonly added: Histogram<'dialect'>;
  private readonly syncs: Histogram;
  private readonly journal: Gauge;
  private readonly starts: Histogram<'runtime'>;
  private readonly kills: Counter<'runtime' | 'reason'>;

  constructor(registry: Registry) {
    const registers = [registry];
    this.requests = new Counter({
      name: 'floe_llm_requests_total',
      help: 'Model calls that ended, by `ok` or the error they ended with; engine `none`: none answered',
      labelNames: ['dialect', 'engine', 'code'],
      registers,
    });
    this.seconds = new Histogram({
      name: 'floe_llm_seconds',
      help: 'Whole time of an answered model call in the proxy, until its completion is durable',
      labelNames: ['dialect', 'engine'],
      buckets: CALL_SECONDS,
      registers,
    });
    this.added = new Histogram({
      name: 'floe_llm_added_seconds',
      help: 'Of that, what is beside the answering engine call: waiting for its turn, rendering, capture, journal',
      labelNames: ['dialect'],
      buckets: ADDED_SECONDS,
      registers,
    });
    this.syncs = new Histogram({
      name: 'floe_journal_sync_seconds',
      help: 'Until a batch of completions was on the disk',
      buckets: SYNC_SECONDS,
      registers,
    });
    this.journal = new Gauge({
      name: 'floe_journal_bytes',
      help: 'Size of the capture journal of this process: completions of sessions that are not delivered, and their neighbours',
      registers,
    });
    this.starts = new Histogram({
      name: 'floe_sandbox_start_seconds',
      help: 'Until a sandbox had started, preparation and waiting for a turn not counted',
      labelNames: ['runtime'],
      buckets: START_SECONDS,
      registers,
    });
    this.kills = new Counter({
      name: 'floe_sandbox_kills_total',
      help: 'Commands ended before their time: over memory or processes, by a deadline, or stopped because nobody wants them',
      labelNames: ['runtime', 'reason'],
      registers,
    });
  }

  /** On the way of every model call, so it does nothing that takes time. */
  readonly called = ({ dialect, engineId, code, totalMs, engineMs }: MeasuredCall): void => {
    const engine = engineId ?? 'none';
    this.requests.inc({ dialect, engine, code });
    if (engineMs === null) return;
    this.seconds.observe({ dialect, engine }, totalMs / MS_PER_SECOND);
    this.added.observe({ dialect }, Math.max(0, totalMs - engineMs) / MS_PER_SECOND);
  };

  readonly synced = (tookMs: number): void => this.syncs.observe(tookMs / MS_PER_SECOND);

  readonly started = (runtime: string, tookMs: number): void =>
    this.starts.observe({ runtime }, tookMs / MS_PER_SECOND);

  readonly killed = (runtime: string, reason: string): void => this.kills.inc({ runtime, reason });

  setJournalBytes(bytes: number): void {
    this.journal.set(bytes);
  }
}
