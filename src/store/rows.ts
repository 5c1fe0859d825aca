import type { SessionStatus, TaskState, UnusableReason } from '../schema/index.ts';

/**
 * The rows of the store. `*_ms` columns are service time (see rollout/service-time.ts), never the wall clock; `*_at` columns are ISO
 * time stamps for operators. JSON columns hold text, which is sent without being parsed where possible.
 */
export type TaskRow = {
  readonly task_id: string;
  readonly idempotency_key: string | null;
  /** SHA-256 of the canonical request, which distinguishes a repeated submit from a different one. */
  readonly digest: string;
  /** The TaskRequest with all defaults filled in, as JSON. */
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
  /** When the task is cancelled if it has not ended; `null` for no deadline. */
  readonly deadline_ms: number | null;
  /** When the last session ended; `null` while sessions are open. */
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
  /** Position in the queue: first in, first out within a priority. Assigned by the store, and the same for every attempt. */
  readonly queue_order: number;
  readonly attempt: number;
  readonly max_attempts: number;
  readonly epoch: number;
  readonly node_id: string | null;
  readonly lease_expires_ms: number | null;
  /** Expected duration in milliseconds; 0 when unknown. Used when the queue order is `longest_first`. */
  readonly expected_ms: number;
  /** The node on which the session failed last. Other nodes are preferred until `avoid_until_ms`. */
  readonly avoid_node: string | null;
  readonly avoid_until_ms: number;
  /** The end of the back-off before a retry. The session is not leased earlier. */
  readonly not_before_ms: number;
  readonly queued_since_ms: number;
  readonly turns: number;
  readonly sampled_tokens: number;
  /** 1 while the node that ran a cancelled session has not yet been notified. */
  readonly cancel_requested: number;
  /** Why the sample is not usable. `null` when it is usable, and until the session has ended. */
  readonly unusable: UnusableReason | null;
  /** SessionSummary as JSON; `null` until the session has ended. */
  readonly summary: string | null;
  readonly created_at: string;
  readonly updated_at: string;
};

/** The fields in which the sessions of one insert differ. */
export type NewSession = Pick<SessionRow, 'session_id' | 'sample_index'>;

export type SessionPatch = Partial<Omit<SessionRow, 'session_id' | 'task_id' | 'sample_index' | 'queue_order'>>;

/** The name and the size of a blob. */
export type BlobRef = { readonly ref: string; readonly bytes: number };

/**
 * What a node delivered for one epoch of a session: the result that ended the session, a result after which it was retried, or the
 * partial result of an attempt that lost its lease.
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

/** The result of a finished session. `cursor` is its position in the order of all results. */
export type ResultRow = {
  readonly cursor: number;
  readonly session_id: string;
  readonly task_id: string;
  readonly trainer: string;
  /** 1 once the trainer has read past it or acknowledged its task's callback. */
  readonly collected: number;
  readonly trajectory_ref: string | null;
  readonly trajectory_bytes: number;
  readonly completions_ref: string | null;
  readonly completions_bytes: number;
  readonly artifacts_ref: string | null;
  readonly artifacts_bytes: number;
};

/** The blobs of a result; `null` for a part that it does not have. */
export type ResultBlobs = {
  readonly trajectory: BlobRef | null;
  readonly completions: BlobRef | null;
  readonly artifacts: BlobRef | null;
};

export type ResultWithSummary = ResultRow & { readonly summary: string };

export type NodeRow = {
  readonly node_id: string;
  /** Identifies the process that owns the node id. */
  readonly instance: string;
  /** How often a new process has taken the node id over. */
  readonly takeovers: number;
  /**
   * The NodeRegistrations of processes that have registered with the node id but have not taken it over yet, oldest first, as JSON.
   * `null` when there are none.
   */
  readonly claims: string | null;
  /** NodeRegistration as JSON. */
  readonly registration: string;
  /** NodeStageMetrics as JSON. */
  readonly metrics: string;
  /** `engines` of the latest heartbeat that had them, as JSON; `null` when there was none. */
  readonly engines: string | null;
  readonly draining: number;
  /** Why the node accepts no sessions at present; `null` when it accepts them. */
  readonly refuses: string | null;
  readonly last_seen_ms: number;
  readonly registered_at: string;
  readonly last_heartbeat: string;
};

/** A callback with the result of an ended task. `delivered_at` is `null` until the callback was acknowledged or refused for the last time. */
export type CallbackRow = {
  readonly task_id: string;
  readonly url: string;
  readonly tries: number;
  readonly next_try_ms: number;
  readonly last_error: string | null;
  readonly delivered_at: string | null;
};

/** The running mean of the durations of sessions with one `duration_key`. */
export type DurationRow = { readonly duration_key: string; readonly mean_ms: number; readonly samples: number };

/** The cursor up to which a named consumer has read the results of a trainer; `trainer` is `null` for the results of all trainers. */
export type ConsumerRow = { readonly consumer: string; readonly trainer: string | null; readonly cursor: number };

/** A trainer's queued and leased sessions, and the results that it has not collected. */
export type TrainerLoad = {
  readonly trainer: string;
  readonly queued: number;
  /** Number of leased sessions. */
  readonly live: number;
  /** Results of a running task with a callback do not count, because the callback will deliver them. */
  readonly uncollected_results: number;
  readonly uncollected_bytes: number;
};

/** A registered engine. */
export type EngineRow = {
  readonly engine_id: string;
  /** EngineSpec as JSON. */
  readonly spec: string;
  readonly registered_at: string;
};

/** The settings that apply to all engines. There is exactly one such row. */
export type EngineStateRow = {
  readonly revision: number;
  readonly paused: 'keep' | 'abort' | null;
  readonly while_paused: 'hold' | 'reject';
  readonly policy_version: string | null;
  /** The ids of engines that were removed, as a JSON array. */
  readonly removed: string;
};
