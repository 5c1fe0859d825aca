import type { EpisodeResult } from '@floe-rl/agents';
import type { AuditTally } from '@floe-rl/capture';
import { type Clock, endSpanWith, FloeError, NO_SPAN, type Span } from '@floe-rl/core';
import { transition } from '@floe-rl/core/protocol';
import {
  type AgentReport,
  type AssistantMessage,
  type Lease,
  MAX_REPLY_EXCERPT,
  type RuntimeReport,
  type RuntimeSpec,
  type SessionProgress,
  type SessionStatus,
  type SessionTiming,
} from '@floe-rl/core/schema';
import type { Evaluation } from '@floe-rl/evaluators';
import type { Failure } from './failure.ts';
import { StageTimer } from './stage-timer.ts';

/** Why the node stops an attempt early: its session was cancelled, its lease was lost, or the node shuts down. */
export type StopReason = 'cancelled' | 'lease_lost' | 'shutdown';

/** The last renewal of the lease of an attempt, as far as this node knows. */
export type Renewal = {
  /** Time of the renewal on the monotonic clock, in milliseconds. */
  readonly atMs: number;
  /** Total time for which this process had been suspended before the renewal, in milliseconds. */
  readonly pausedMs: number;
};

type TimingKey = Exclude<keyof SessionTiming, 'total_ms' | 'queued_ms'>;

/** Returns the beginning of a reply: of its text, else of its first tool call, else of its thinking. */
function replyExcerpt({ content, tool_calls: calls = [], reasoning_content: thinking = '' }: AssistantMessage): string {
  const text = content?.trim() ?? '';
  const [call] = calls;
  const shown =
    text !== '' ? text : call === undefined ? thinking.trim() : `${call.function.name} ${call.function.arguments}`;
  return shown.slice(0, MAX_REPLY_EXCERPT);
}

/** One attempt to run a session on this node: its lease, its status, and its results so far. */
export class Attempt {
  readonly lease: Lease;
  readonly spec: RuntimeSpec;
  readonly timer: StageTimer;
  /** Tracing span of the whole attempt. The spans of its stages are its children. */
  readonly span: Span;
  /** Aborts when the session must end immediately; the abort reason is a FloeError. */
  readonly signal: AbortSignal;
  /** Why the attempt was stopped; `null` until {@link stop} is called. */
  stopReason: StopReason | null = null;
  /** The first failure of the attempt, which decides its outcome; `null` when it has none. */
  failure: Failure | null = null;
  agent: AgentReport | null = null;
  /** Result of the episode of a floe agent; `null` for the other harnesses, and before the episode has ended. */
  episode: EpisodeResult | null = null;
  /** How the sandbox of the agent was used; `null` when the task does not reuse sandboxes, and before the sandbox has started. */
  runtime: RuntimeReport | null = null;
  /** The evaluations of the task's steps up to now. */
  readonly steps: { readonly name: string; readonly evaluation: Evaluation }[] = [];
  /** Counts of the audit that compares sampled with trained tokens, per engine; empty until the trajectory is built. */
  tallies: readonly AuditTally[] = [];
  /** Number of different policy versions that sampled the attempt's tokens. */
  policyVersions = 0;
  /** Number of fresh runtimes for the evaluator that were started, or whose start was requested. */
  freshRuntimeCount = 0;
  turns = 0;
  sampledTokens = 0;
  /** CPU time of the process that counts to the attempt, in microseconds. */
  cpuUs = 0;
  /** Increases with every sign of progress. A stage in which the number stays the same for too long counts as stalled. */
  progressCount = 0;
  renewal: Renewal;
  private unreportedReply: AssistantMessage | null = null;
  private currentStatus: SessionStatus = 'LEASED';
  private readonly controller = new AbortController();
  private readonly clock: Clock;
  private readonly startedMs: number;
  private readonly durationsMs = new Map<TimingKey, number>();
  /** Start time of each running measurement, by the name of the measured duration. */
  private readonly startsMs = new Map<TimingKey, number>();
  private readonly onChange: (entered: SessionStatus | null) => void;

  /**
   * Creates an attempt. `onChange` is called with each status that the attempt enters, and with `null` when it makes progress without a new
   * status.
   */
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

  /** Returns a timer for a time budget. The field `timeout_clock` of the task decides which time counts. */
  newTimer(budgetMs: number): StageTimer {
    return new StageTimer(this.clock, budgetMs, this.lease.task.timeout_clock);
  }

  get id(): string {
    return this.lease.session_id;
  }

  /** Returns the ids of the attempt, which are in every log line about it. */
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

  /** Sets the number of model turns and of sampled tokens up to now, as counted by the proxy, and the newest reply. */
  recordCalls(turns: number, sampledTokens: number, reply: AssistantMessage): void {
    this.turns = turns;
    this.sampledTokens = sampledTokens;
    this.unreportedReply = reply;
    this.onChange(null);
  }

  /** Counts a sign of progress: output of a command, or the start, a streamed part or the end of a model call. */
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

  /** Returns the progress for a heartbeat. It has the beginning of the newest reply, unless an earlier heartbeat had it. */
  report(): SessionProgress {
    const reply = this.unreportedReply;
    this.unreportedReply = null;
    return reply === null ? this.progress() : { ...this.progress(), last_reply: replyExcerpt(reply) };
  }

  /** Stops the attempt and aborts its signal. Only the first call has an effect. */
  stop(reason: StopReason): void {
    if (this.stopReason !== null) return;
    this.stopReason = reason;
    const code = reason === 'cancelled' ? 'cancelled' : reason === 'lease_lost' ? 'stale_epoch' : 'not_ready';
    this.controller.abort(new FloeError(code, `session ${this.id} was stopped: ${reason}`));
  }

  /** Sets the failure of the attempt unless an earlier failure is set. */
  fail(failure: Failure): void {
    this.failure ??= failure;
  }

  /**
   * Runs `work`, measures its duration for the timing of the result, and records it as a child span of `parent`. All of this happens even
   * if `work` rejects. The durations of several measurements with the same `key` are added up.
   */
  async measure<T>(key: TimingKey, work: (span: Span) => Promise<T>, parent: Span = this.span): Promise<T> {
    const start = this.clock.monotonicMs();
    const span = parent.child(key.replace('_ms', ''), { session_id: this.id, attempt: this.lease.attempt });
    this.startsMs.set(key, start);
    try {
      return await endSpanWith(span, work(span));
    } finally {
      this.startsMs.delete(key);
      this.durationsMs.set(key, (this.durationsMs.get(key) ?? 0) + this.clock.monotonicMs() - start);
    }
  }

  /** Returns the durations measured so far. A running measurement counts up to now. */
  timing(): SessionTiming {
    const duration = (key: TimingKey): number | null => {
      const start = this.startsMs.get(key);
      const ended = this.durationsMs.get(key) ?? null;
      return start === undefined ? ended : (ended ?? 0) + this.clock.monotonicMs() - start;
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
