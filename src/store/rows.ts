import type { SessionStatus, TaskState, UnusableReason } from '../schema/index.ts';

/**
 * The rows of the store. `*_ms` columns are service time (see rollout/service-time.ts), never the wall clock; `*_at`
 * columns are ISO time stamps for people. JSON columns hold text that is handed on without being parsed where possible.
 */
export type TaskRow = {
  readonly task_id: string;
  readonly idempotency_key: string | null;
  /** SHA-256 of the canonical request, to tell a repeated submit from a different one. */
  readonly digest: string;
  /** The parsed TaskRequest with every default, as JSON. */
  readonly request: string;
  readonly status: TaskState;
  readonly harness: string;
  readonly trainer: string;
  /** Samples that exist: those asked for, and refills. */
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
  /** Cancelled when it has not ended by then. */
  readonly deadline_ms: number | null;
  /** When its last session ended. */
  readonly ended_ms: number | null;
  readonly created_at: string;
};

export type TaskPatch = Partial<
  Pick<
    TaskRow,
    'status' | 'total_sessions' | 'refilled' | 'refills_left' | 'early_stopped' | 'deadline_ms' | 'ended_ms'
  >
>;

/** What a session adds to the counters of its task when it ends. */
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
  /** First in, first out within a priority; assigned by the store and kept over attempts. */
  readonly queue_order: number;
  readonly attempt: number;
  readonly max_attempts: number;
  readonly epoch: number;
  readonly node_id: string | null;
  readonly lease_expires_ms: number | null;
  /** How long it is expected to run, ms; 0: nothing is known. Orders the queue when the longest go first. */
  readonly expected_ms: number;
  /** The node that failed it last; others come first until `avoid_until_ms`. */
  readonly avoid_node: string | null;
  readonly avoid_until_ms: number;
  /** Not to be leased before: the backoff of a retry. */
  readonly not_before_ms: number;
  readonly queued_since_ms: number;
  readonly turns: number;
  readonly sampled_tokens: number;
  /** 1 until the node that ran a cancelled session has been told and has let go of it. */
  readonly cancel_requested: number;
  /** Once terminal; null: usable. */
  readonly unusable: UnusableReason | null;
  /** SessionSummary as JSON, once terminal. */
  readonly summary: string | null;
  readonly created_at: string;
  readonly updated_at: string;
};

/** Assigned by the store or fixed at creation. */
export type NewSession = Pick<SessionRow, 'session_id' | 'sample_index'>;

export type SessionPatch = Partial<Omit<SessionRow, 'session_id' | 'task_id' | 'sample_index' | 'queue_order'>>;

/** Bytes in the blob store. */
export type BlobRef = { readonly ref: string; readonly bytes: number };

/**
 * What a node delivered for one epoch of a session: the result that ended it, one that led to a new attempt, or the partial
 * remains of an attempt that lost its lease.
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

/** A finished session's place in the order of results. */
export type ResultRow = {
  readonly cursor: number;
  readonly session_id: string;
  readonly task_id: string;
  readonly trainer: string;
  /** 1 once the trainer has it: it read past it, or acknowledged its callback. */
  readonly collected: number;
  readonly trajectory_ref: string | null;
  readonly trajectory_bytes: number;
  readonly completions_ref: string | null;
  readonly completions_bytes: number;
  readonly artifacts_ref: string | null;
  readonly artifacts_bytes: number;
};

/** What a result has in the blob store. */
export type ResultBlobs = {
  readonly trajectory: BlobRef | null;
  readonly completions: BlobRef | null;
  readonly artifacts: BlobRef | null;
};

export type ResultWithSummary = ResultRow & { readonly summary: string };

export type NodeRow = {
  readonly node_id: string;
  /** Of the process that holds the id. */
  readonly instance: string;
  /** How often a new process has taken the id over. */
  readonly takeovers: number;
  /** NodeRegistrations of processes that would take the id over and have made no other call yet, oldest first, as JSON; null: none. */
  readonly claims: string | null;
  /** NodeRegistration as JSON. */
  readonly registration: string;
  /** NodeStageMetrics as JSON. */
  readonly metrics: string;
  /** `engines` of the latest heartbeat as JSON; null: it has told nothing yet. */
  readonly engines: string | null;
  readonly draining: number;
  /** Why it takes no sessions for now; null: it takes them. */
  readonly refuses: string | null;
  readonly last_seen_ms: number;
  readonly registered_at: string;
  readonly last_heartbeat: string;
};

/** A task result that its trainer has yet to acknowledge. */
export type CallbackRow = {
  readonly task_id: string;
  readonly url: string;
  readonly tries: number;
  readonly next_try_ms: number;
  readonly last_error: string | null;
  readonly delivered_at: string | null;
};

/** Running mean of how long sessions of one `duration_key` run. */
export type DurationRow = { readonly duration_key: string; readonly mean_ms: number; readonly samples: number };

/** How far a named reader has read the results; `trainer` null: those of all. */
export type ConsumerRow = { readonly consumer: string; readonly trainer: string | null; readonly cursor: number };

/** What of a trainer's work is under way. */
export type TrainerLoad = {
  readonly trainer: string;
  readonly queued: number;
  /** Leased. */
  readonly live: number;
  /** Those of a running task with a callback do not count: the callback will bring them. */
  readonly uncollected_results: number;
  readonly uncollected_bytes: number;
};

/** A registered engine, with an id of its own. */
export type EngineRow = {
  readonly engine_id: string;
  /** EngineSpec as JSON. */
  readonly spec: string;
  readonly registered_at: string;
};

/** What holds for all engines; there is one such row. */
export type EngineStateRow = {
  readonly revision: number;
  readonly paused: 'keep' | 'abort' | null;
  readonly while_paused: 'hold' | 'reject';
  readonly policy_version: string | null;
  /** JSON array of the ids of engines that were removed. */
  readonly removed: string;
};
