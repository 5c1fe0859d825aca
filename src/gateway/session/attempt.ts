import type { Clock } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import { transition } from '../../core/session-state.ts';
import { StageTimer } from '../../core/stage-timer.ts';
import { endSpanWith, NO_SPAN, type Span } from '../../core/tracing.ts';
import type {
  AgentReport,
  Lease,
  Outcome,
  RuntimeSpec,
  SessionError,
  SessionProgress,
  SessionStatus,
  SessionTiming,
} from '../../schema/index.ts';
import type { AuditTally } from '../../tokens/audit.ts';
import type { Renewal } from './lease-fence.ts';

/** Why the node ends a session before its time. */
export type StopReason = 'cancelled' | 'lease_lost' | 'shutdown';

export type Failure = { readonly outcome: Outcome; readonly error: SessionError };

type TimingKey = Exclude<keyof SessionTiming, 'total_ms' | 'queued_ms'>;

/** One try at a session on this node: its lease, where it stands, and what it has found out so far. */
export class Attempt {
  readonly lease: Lease;
  readonly spec: RuntimeSpec;
  readonly timer: StageTimer;
  /** Of the whole attempt; its stages are below it. */
  readonly span: Span;
  /** Aborts when the session must end now; the reason is a FloeError. */
  readonly signal: AbortSignal;
  stopReason: StopReason | null = null;
  /** The first thing that went wrong decides the outcome. */
  failure: Failure | null = null;
  agent: AgentReport | null = null;
  /** The audit's numbers, once there is a trajectory. */
  tallies: readonly AuditTally[] = [];
  /** Policy versions that its tokens were sampled by. */
  policyVersions = 0;
  turns = 0;
  sampledTokens = 0;
  /** Grows with every sign of progress. */
  signs = 0;
  /** When its lease was last known to be good. */
  renewal: Renewal;
  private currentStatus: SessionStatus = 'LEASED';
  private readonly controller = new AbortController();
  private readonly clock: Clock;
  private readonly startedMs: number;
  private readonly spans = new Map<TimingKey, number>();
  /** Start of the spans that are being measured. */
  private readonly open = new Map<TimingKey, number>();
  private readonly onChange: (entered: SessionStatus | null) => void;

  /** `onChange` hears of each status that it enters, and of progress as null. */
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

  /** A budget by the task's clock. */
  newTimer(budgetMs: number): StageTimer {
    return new StageTimer(this.clock, budgetMs, this.lease.task.timeout_clock);
  }

  get id(): string {
    return this.lease.session_id;
  }

  /** What every log line about it says. */
  get names() {
    const { task_id, session_id, attempt, epoch } = this.lease;
    return { task_id, session_id, attempt, epoch };
  }

  get status(): SessionStatus {
    return this.currentStatus;
  }

  enter(status: SessionStatus): void {
    this.currentStatus = transition(this.currentStatus, status);
    this.signs++;
    this.onChange(status);
  }

  /** Model calls so far, told by the proxy. */
  progressed(turns: number, sampledTokens: number): void {
    this.turns = turns;
    this.sampledTokens = sampledTokens;
    this.onChange(null);
  }

  /** Something of it moves: a command writes output, a model call begins, streams or ends, a step is done. */
  readonly alive = (): void => {
    this.signs++;
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

  /** Ends the attempt; the first reason holds. */
  stop(reason: StopReason): void {
    if (this.stopReason !== null) return;
    this.stopReason = reason;
    const code = reason === 'cancelled' ? 'cancelled' : reason === 'lease_lost' ? 'stale_epoch' : 'not_ready';
    this.controller.abort(new FloeError(code, `session ${this.id} was stopped: ${reason}`));
  }

  fail(failure: Failure): void {
    this.failure ??= failure;
  }

  /** Measures `work` into the result's timing, and as a span below `above`, whether it succeeds or not. */
  async measure<T>(key: TimingKey, work: (span: Span) => Promise<T>, above: Span = this.span): Promise<T> {
    const start = this.clock.monotonicMs();
    const span = above.child(key.replace(/_ms$/, ''), { session_id: this.id, attempt: this.lease.attempt });
    this.open.set(key, start);
    try {
      return await endSpanWith(span, work(span));
    } finally {
      this.open.delete(key);
      this.spans.set(key, this.clock.monotonicMs() - start);
    }
  }

  /** Spans that are still open count up to now. */
  timing(): SessionTiming {
    const span = (key: TimingKey): number | null => {
      const start = this.open.get(key);
      return start === undefined ? (this.spans.get(key) ?? null) : this.clock.monotonicMs() - start;
    };
    return {
      queued_ms: this.lease.queued_ms,
      init_ms: span('init_ms'),
      ready_ms: span('ready_ms'),
      running_ms: span('running_ms'),
      postrun_queue_ms: span('postrun_queue_ms'),
      build_ms: span('build_ms'),
      eval_ms: span('eval_ms'),
      postrun_ms: span('postrun_ms'),
      total_ms: this.clock.monotonicMs() - this.startedMs,
    };
  }
}
