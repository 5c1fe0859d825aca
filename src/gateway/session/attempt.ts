import type { Clock } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import { transition } from '../../core/session-state.ts';
import { StageTimer } from '../../core/stage-timer.ts';
import { endSpanWith, NO_SPAN, type Span } from '../../core/tracing.ts';
import type {
  AgentReport,
  Lease,
  RuntimeSpec,
  SessionProgress,
  SessionStatus,
  SessionTiming,
} from '../../schema/index.ts';
import type { AuditTally } from '../../tokens/audit.ts';
import type { Failure } from './failure.ts';

/** Why the node ends a session early. */
export type StopReason = 'cancelled' | 'lease_lost' | 'shutdown';

/** The last time at which an attempt's lease was known to be valid. */
export type Renewal = {
  /** Monotonic clock. */
  readonly atMs: number;
  /** Total time for which the process had been suspended by then. */
  readonly pausedMs: number;
};

type TimingKey = Exclude<keyof SessionTiming, 'total_ms' | 'queued_ms'>;

/** One try at a session on this node: its lease, its status, and its results so far. */
export class Attempt {
  readonly lease: Lease;
  readonly spec: RuntimeSpec;
  readonly timer: StageTimer;
  /** Span of the whole attempt; the spans of its stages are its children. */
  readonly span: Span;
  /** Aborts when the session must end immediately; the reason is a FloeError. */
  readonly signal: AbortSignal;
  /** `null` until {@link stop} is called. */
  stopReason: StopReason | null = null;
  /** The first failure, which decides the outcome; `null` when there is none. */
  failure: Failure | null = null;
  agent: AgentReport | null = null;
  /** The audit's counts per engine; empty until there is a trajectory. */
  tallies: readonly AuditTally[] = [];
  /** Number of policy versions that sampled its tokens. */
  policyVersions = 0;
  turns = 0;
  sampledTokens = 0;
  /** Grows with every sign of progress. */
  progressCount = 0;
  renewal: Renewal;
  private currentStatus: SessionStatus = 'LEASED';
  private readonly controller = new AbortController();
  private readonly clock: Clock;
  private readonly startedMs: number;
  private readonly durationsMs = new Map<TimingKey, number>();
  /** Start of each measurement in progress. */
  private readonly startsMs = new Map<TimingKey, number>();
  private readonly onChange: (entered: SessionStatus | null) => void;

  /** Calls `onChange` with each status that the attempt enters, and with `null` on progress within a status. */
  constructor(
    lease: Lease,
    spec: RuntimeSpec,
    clock: Clock,
    onChange: (entered: SessionStatus | null) => void,
    span: Span = NO_SPAN,
  ) {
    this.lease = lease;
    this.spec = spec;
    this.clock = clock;
    this.onChange = onChange;
    this.span = span;
    this.signal = this.controller.signal;
    this.startedMs = clock.monotonicMs();
    this.renewal = { atMs: this.startedMs, pausedMs: 0 };
    this.timer = this.newTimer(lease.task.timeout_seconds * 1000);
  }

  /** A time budget that counts by the task's `timeout_clock`. */
  newTimer(budgetMs: number): StageTimer {
    return new StageTimer(this.clock, budgetMs, this.lease.task.timeout_clock);
  }

  get id(): string {
    return this.lease.session_id;
  }

  /** Fields that identify the attempt in every log line about it. */
  get names() {
    const { task_id, session_id, attempt, epoch } = this.lease;
    return { task_id, session_id, attempt, epoch };
  }

  get status(): SessionStatus {
    return this.currentStatus;
  }

  enter(status: SessionStatus): void {
    this.currentStatus = transition(this.currentStatus, status);
    this.progressCount++;
    this.onChange(status);
  }

  /** Records the number of model turns and sampled tokens so far, as the proxy counts them. */
  recordCalls(turns: number, sampledTokens: number): void {
    this.turns = turns;
    this.sampledTokens = sampledTokens;
    this.onChange(null);
  }

  /** Records a sign of progress: output of a command, or the start, a delta or the end of a model call. */
  readonly recordProgress = (): void => {
    this.progressCount++;
  };

  progress(): SessionProgress {
    return {
      session_id: this.id,
      epoch: this.lease.epoch,
      status: this.currentStatus,
      turns: this.turns,
      sampled_tokens: this.sampledTokens,
    };
  }

  /** Ends the attempt. Only the first call has an effect. */
  stop(reason: StopReason): void {
    if (this.stopReason !== null) return;
    this.stopReason = reason;
    const code = reason === 'cancelled' ? 'cancelled' : reason === 'lease_lost' ? 'stale_epoch' : 'not_ready';
    this.controller.abort(new FloeError(code, `session ${this.id} was stopped: ${reason}`));
  }

  /** Sets the failure unless there is an earlier one. */
  fail(failure: Failure): void {
    this.failure ??= failure;
  }

  /** Measures the duration of `work` for the result's timing and as a child span of `parent`, whether it succeeds or not. */
  async measure<T>(key: TimingKey, work: (span: Span) => Promise<T>, parent: Span = this.span): Promise<T> {
    const start = this.clock.monotonicMs();
    const span = parent.child(key.replace(/_ms$/, ''), { session_id: this.id, attempt: this.lease.attempt });
    this.startsMs.set(key, start);
    try {
      return await endSpanWith(span, work(span));
    } finally {
      this.startsMs.delete(key);
      this.durationsMs.set(key, this.clock.monotonicMs() - start);
    }
  }

  /** The durations so far. A measurement in progress counts up to now. */
  timing(): SessionTiming {
    const duration = (key: TimingKey): number | null => {
      const start = this.startsMs.get(key);
      return start === undefined ? (this.durationsMs.get(key) ?? null) : this.clock.monotonicMs() - start;
    };
    return {
      queued_ms: this.lease.queued_ms,
      init_ms: duration('init_ms'),
      ready_ms: duration('ready_ms'),
      running_ms: duration('running_ms'),
      postrun_queue_ms: duration('postrun_queue_ms'),
      build_ms: duration('build_ms'),
      eval_ms: duration('eval_ms'),
      postrun_ms: duration('postrun_ms'),
      total_ms: this.clock.monotonicMs() - this.startedMs,
    };
  }
}
