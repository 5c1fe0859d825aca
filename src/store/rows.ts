import type { SessionStatus, TaskState, UnusableReason } from '../schema/index.ts';

/**
 * The row of a task. In this and all other rows, `*_ms` columns are service time (see rollout/service-time.ts), never the wall clock;
 * `*_at` columns are ISO time stamps for operators. JSON columns hold text, which is sent without being parsed where possible.
 */
export type TaskRow = {
  readonly task_id: string;
  readonly idempotency_key: string | null;
  /** SHA-256 of the canonical request. It distinguishes a repeated submit from a different one with the same id or key. */
  readonly digest: string;
  /** The TaskRequest with all defaults filled in, as JSON text. */
  readonly request: string;
  readonly status: TaskState;
  readonly harness: string;
  readonly trainer: string;
  /** Number of samples: the requested ones and the refills. */
  readonly total_sessions: number;
  readonly completed_sessions: number;
  readonly usable_sessions: number;
  readonly baseline_sessions: number;
  readonly refilled: number;
  readonly refills_left: number;
  readonly early_stopped: number;
  readonly reward_sum: number;
  readonly reward_count: number;
  readonly callback_url: string | null;
  /** Service time after which the task is cancelled if it has not ended; `null` for no deadline. */
  readonly deadline_ms: number | null;
  /** Service time at which the last session ended; `null` while sessions are open. */
  readonly ended_ms: number | null;
  readonly created_at: string;
};

export type TaskPatch = Partial<
  Pick<
    TaskRow,
    'status' | 'total_sessions' | 'refilled' | 'refills_left' | 'early_stopped' | 'deadline_ms' | 'ended_ms'
  >
>;

/** The amounts that ended sessions add to the counters of their task. */
export type EndedCounts = {
  readonly sessions: number;
  readonly rewardSum: number;
  readonly rewardCount: number;
  readonly usable: number;
  readonly inBaseline: number;
};

export type SessionRow = {
  readonly session_id: string;
  readonly task_id: string;
  readonly sample_index: number;
  readonly status: SessionStatus;
  readonly trainer: string;
  readonly priority: number;
  /**
   * Position in the queue: within a priority, sessions with lower numbers come first. The store assigns it, and it stays the same for
   * every attempt.
   */
  readonly queue_order: number;
  readonly attempt: number;
  readonly max_attempts: number;
  readonly epoch: number;
  readonly node_id: string | null;
  readonly lease_expires_ms: number | null;
  /** Expected duration in milliseconds; 0 when unknown. It decides the order of the queue when the queue order is `longest_first`. */
  readonly expected_ms: number;
  /** The node on which the session failed last; `null` when no node is avoided. Other nodes are preferred until `avoid_until_ms`. */
  readonly avoid_node: string | null;
  readonly avoid_until_ms: number;
  /** End of the back-off before a retry. The session is not leased before. */
  readonly not_before_ms: number;
  readonly queued_since_ms: number;
  readonly turns: number;
  readonly sampled_tokens: number;
  /** 1 while the node that runs the cancelled session must still be notified, else 0. */
  readonly cancel_requested: number;
  /** Why the sample is not usable; `null` when it is usable, and until the session has ended. */
  readonly unusable: UnusableReason | null;
  /** The SessionSummary as JSON text; `null` until the session has ended. */
  readonly summary: string | null;
  readonly created_at: string;
  readonly updated_at: string;
};

/** The fields that differ between the sessions of one insert. */
export type NewSession = Pick<SessionRow, 'session_id' | 'sample_index'>;

export type SessionPatch = Partial<Omit<SessionRow, 'session_id' | 'task_id' | 'sample_index' | 'queue_order'>>;

/** The name and the size of a blob. */
export type BlobRef = { readonly ref: string; readonly bytes: number };

/**
 * A delivery of a node for one epoch of a session: the result that ended the session, a result after which it was retried, or the partial
 * result of an attempt that lost its lease.
 */
export type DeliveryRow = {
  readonly session_id: string;
  readonly epoch: number;
  readonly kind: 'result' | 'retried' | 'partial';
  readonly digest: string;
  readonly summary: string;
  readonly trajectory_ref: string | null;
  readonly completions_ref: string | null;
  readonly artifacts_ref: string | null;
  readonly delivered_at: string;
};

/** The result of an ended session. `cursor` is its position in the order of all results. */
export type ResultRow = {
  readonly cursor: number;
  readonly session_id: string;
  readonly task_id: string;
  readonly trainer: string;
  /** 1 once the trainer has collected the result, by reading past it or by acknowledging its task's callback; else 0. */
  readonly collected: number;
  readonly trajectory_ref: string | null;
  readonly trajectory_bytes: number;
  readonly completions_ref: string | null;
  readonly completions_bytes: number;
  readonly artifacts_ref: string | null;
  readonly artifacts_bytes: number;
};

/** References to the blobs of a result; `null` for a part that the result does not have. */
export type ResultBlobs = {
  readonly trajectory: BlobRef | null;
  readonly completions: BlobRef | null;
  readonly artifacts: BlobRef | null;
};

export type ResultWithSummary = ResultRow & { readonly summary: string };

export type NodeRow = {
  readonly node_id: string;
  /** Identifies the process that holds the node id. */
  readonly instance: string;
  /** The number of times that a new process has taken the node id over. */
  readonly takeovers: number;
  /**
   * The NodeRegistrations of processes that have registered with the node id but have not taken it over yet, oldest first, as JSON text.
   * `null` when there are no such processes.
   */
  readonly claims: string | null;
  /** The NodeRegistration as JSON text. */
  readonly registration: string;
  /** The NodeStageMetrics as JSON text. */
  readonly metrics: string;
  /** The field `engines` of the latest heartbeat that had one, as JSON text; `null` when none had it. */
  readonly engines: string | null;
  readonly draining: number;
  /** Why the node accepts no sessions at present; `null` when it accepts them. */
  readonly refuses: string | null;
  readonly last_seen_ms: number;
  readonly registered_at: string;
  readonly last_heartbeat: string;
};

/**
 * A callback with the result of an ended task. `delivered_at` is `null` until the trainer has acknowledged the callback or refused further
 * tries.
 */
export type CallbackRow = {
  readonly task_id: string;
  readonly url: string;
  readonly tries: number;
  readonly next_try_ms: number;
  readonly last_error: string | null;
  readonly delivered_at: string | null;
};

/** The running mean of the durations, in milliseconds, of sessions with one `duration_key`. */
export type DurationRow = { readonly duration_key: string; readonly mean_ms: number; readonly samples: number };

/**
 * How far a named consumer has read: up to the result with this cursor. `trainer` is the trainer whose results it reads; `null` when it
 * reads those of all trainers.
 */
export type ConsumerRow = { readonly consumer: string; readonly trainer: string | null; readonly cursor: number };

/** The load that a trainer causes: its queued and leased sessions, and the results that it has not collected. */
export type TrainerLoad = {
  readonly trainer: string;
  readonly queued: number;
  /** Number of leased sessions. */
  readonly live: number;
  /**
   * Number of ended sessions whose results the trainer has not collected. The results of a running task with a callback do not count,
   * because the callback will deliver them.
   */
  readonly uncollected_results: number;
  readonly uncollected_bytes: number;
};

/** An engine that a trainer or operator has registered. */
export type EngineRow = {
  readonly engine_id: string;
  /** The EngineSpec as JSON text. */
  readonly spec: string;
  readonly registered_at: string;
};

/** The row with the settings that apply to all engines. There is exactly one such row. */
export type EngineStateRow = {
  readonly revision: number;
  readonly paused: 'keep' | 'abort' | null;
  readonly while_paused: 'hold' | 'reject';
  readonly policy_version: string | null;
  /** The ids of engines that were removed, as JSON text of an array. */
  readonly removed: string;
};
