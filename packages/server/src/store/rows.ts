import type { SessionStatus, TaskState, UnusableReason } from '@floe-rl/core/schema';

/**
 * The row of a task. In the rows of all tables, `*_ms` columns are service time in milliseconds (see rollout/service-time.ts), never the
 * wall clock, and `*_at` columns are ISO time stamps for operators. JSON is stored as text, which is sent without being parsed where
 * possible.
 */
export type TaskRow = {
  readonly task_id: string;
  readonly idempotency_key: string | null;
  /** SHA-256 of the canonical request. It distinguishes a repeated submission from a different task with the same id or idempotency key. */
  readonly digest: string;
  /** The task's `TaskRequest` with all defaults filled in, as JSON text. */
  readonly request: string;
  readonly status: TaskState;
  readonly harness: string;
  readonly trainer: string;
  /** Number of samples of the task: the requested samples and the refills. */
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
  /** Service time in milliseconds at which the task is cancelled if it has not ended; `null` for no deadline. */
  readonly deadline_ms: number | null;
  /** Service time in milliseconds at which the task's last session ended; `null` while sessions are open. */
  readonly ended_ms: number | null;
  readonly created_at: string;
};

export type TaskPatch = Partial<
  Pick<
    TaskRow,
    | 'status'
    | 'total_sessions'
    | 'refilled'
    | 'refills_left'
    | 'early_stopped'
    | 'callback_url'
    | 'deadline_ms'
    | 'ended_ms'
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
   * Position of the session in the queue. Among sessions of the same priority, sessions with lower numbers come first. The store assigns the
   * number when the session is added, and every attempt keeps it.
   */
  readonly queue_order: number;
  readonly attempt: number;
  readonly max_attempts: number;
  readonly epoch: number;
  readonly node_id: string | null;
  readonly lease_expires_ms: number | null;
  /** Memory in MiB that the limits of the session allow its sandboxes to use. */
  readonly memory_mb: number;
  /** Expected duration of the session in milliseconds; 0 when unknown. The queue order `longest_first` sorts by it. */
  readonly expected_ms: number;
  /**
   * The node on which the session failed last; `null` when no node is avoided. Until `avoid_until_ms`, this node does not get the session.
   */
  readonly avoid_node: string | null;
  readonly avoid_until_ms: number;
  /** Service time in milliseconds at which the back-off before a retry ends. The session is not leased earlier. */
  readonly not_before_ms: number;
  readonly queued_since_ms: number;
  readonly turns: number;
  readonly sampled_tokens: number;
  /** 1 while the session is cancelled but the node that runs it has not been notified yet, else 0. */
  readonly cancel_requested: number;
  /** Why the session's sample is not usable for training; `null` when it is usable, and while the session has not ended. */
  readonly unusable: UnusableReason | null;
  /** The session's `SessionSummary` as JSON text; `null` while the session has not ended. */
  readonly summary: string | null;
  readonly created_at: string;
  readonly updated_at: string;
};

/** The fields that differ between sessions that are inserted together. */
export type NewSession = Pick<SessionRow, 'session_id' | 'sample_index'>;

export type SessionPatch = Partial<Omit<SessionRow, 'session_id' | 'task_id' | 'sample_index' | 'queue_order'>>;

/** The name of a blob (`ref`) and its size in bytes. */
export type BlobRef = { readonly ref: string; readonly bytes: number };

/**
 * A node's delivery for one epoch of a session. `result` is the result that ended the session. `retried` is a result after which the session
 * was retried. `partial` is the partial result of an attempt that lost its lease.
 */
export type DeliveryRow = {
  readonly session_id: string;
  readonly epoch: number;
  readonly kind: 'result' | 'retried' | 'partial';
  readonly digest: string;
  /**
   * The delivered `SessionSummary` as JSON text; `null` when the delivery is the result of the session. The result's row then has the summary
   * and the references, and the references are `null` here.
   */
  readonly summary: string | null;
  readonly trajectory_ref: string | null;
  readonly completions_ref: string | null;
  readonly artifacts_ref: string | null;
  readonly delivered_at: string;
};

/** The result of an ended session, which never changes. `cursor` is its position in the order of all results. */
export type ResultRow = {
  readonly cursor: number;
  readonly session_id: string;
  readonly task_id: string;
  readonly trainer: string;
  readonly trajectory_ref: string | null;
  readonly trajectory_bytes: number;
  readonly completions_ref: string | null;
  readonly completions_bytes: number;
  readonly artifacts_ref: string | null;
  readonly artifacts_bytes: number;
};

/** References to the blobs of a result. A part that the result does not have is `null`. */
export type ResultBlobs = {
  readonly trajectory: BlobRef | null;
  readonly completions: BlobRef | null;
  readonly artifacts: BlobRef | null;
};

export type ResultWithSummary = ResultRow & { readonly summary: string };

export type NodeRow = {
  readonly node_id: string;
  /** Identifies the gateway process that currently holds the node id. */
  readonly instance: string;
  /** Number of times that a new gateway process has taken over the node id. */
  readonly takeovers: number;
  /**
   * Registrations (`NodeRegistration`) of processes that have registered under the node id but have not taken it over yet, oldest first, as
   * JSON text; `null` when there are none.
   */
  readonly claims: string | null;
  /** The node's `NodeRegistration` as JSON text. */
  readonly registration: string;
  /** The node's latest `NodeStageMetrics` as JSON text. */
  readonly metrics: string;
  /** The node's latest report on its engines, without the state of each engine, as JSON text; `null` when no heartbeat has reported it. */
  readonly engines: string | null;
  readonly draining: number;
  /** Reason why the node currently accepts no sessions; `null` when it accepts them. */
  readonly refuses: string | null;
  readonly last_seen_ms: number;
  readonly registered_at: string;
  readonly last_heartbeat: string;
};

/**
 * The delivery of an ended task's result to the trainer's callback URL. `delivered_at` is `null` until the trainer has acknowledged the
 * callback or refused further tries.
 */
export type CallbackRow = {
  readonly task_id: string;
  readonly url: string;
  readonly tries: number;
  readonly next_try_ms: number;
  readonly last_error: string | null;
  readonly delivered_at: string | null;
};

/**
 * The id under which a client of another system's API submitted a task. `task_id` is the newest task with this alias: an alias may be used
 * again when its task has ended, and the earlier task then has no alias.
 */
export type AliasRow = {
  /** The API to which the alias belongs; each API has a separate namespace. */
  readonly api: 'polar' | 'prorl';
  /** The id that the client chose for the task. It may be any text. */
  readonly alias: string;
  readonly task_id: string;
};

/** A task together with its alias. */
export type AliasedTask = TaskRow & { readonly alias: string };

/** The running mean of the durations, in milliseconds, of all sessions with the same `duration_key`. */
export type DurationRow = { readonly duration_key: string; readonly mean_ms: number; readonly samples: number };

/**
 * How far a named consumer has read the results: up to `cursor`. `trainer` is the trainer for which the consumer reads results; `null` when
 * it reads the results of all trainers.
 */
export type ConsumerRow = { readonly consumer: string; readonly trainer: string | null; readonly cursor: number };

/** Number of a trainer's queued sessions with the same memory limit, which is in MiB. */
export type QueuedSessions = { readonly trainer: string; readonly memory_mb: number; readonly sessions: number };

/** The load that a trainer causes besides its queue: its leased sessions, and its results that it has not collected. */
export type TrainerLoad = {
  readonly trainer: string;
  /** Number of the trainer's leased sessions. */
  readonly live: number;
  /**
   * Number of the trainer's ended sessions with a result that it has not collected. Results of a running task with a callback or an alias
   * are not counted, because the trainer can collect them only when the task has ended.
   */
  readonly uncollected_results: number;
  readonly uncollected_bytes: number;
};

/** The row of an engine that a trainer or operator has registered. */
export type EngineRow = {
  readonly engine_id: string;
  /** The engine's `EngineSpec` as JSON text. */
  readonly spec: string;
  readonly registered_at: string;
};

/** Settings that apply to all engines. The table has exactly one row. */
export type EngineStateRow = {
  readonly revision: number;
  readonly paused: 'keep' | 'abort' | null;
  readonly while_paused: 'hold' | 'reject';
  readonly policy_version: string | null;
  /** The ids of removed engines, as a JSON array in text form. */
  readonly removed: string;
};

/** A batch stream: the state from which batches of groups are made. Its rows and groups are in other tables. */
export type BatchStreamRow = {
  readonly batch_id: string;
  /** SHA-256 of the canonical request, like {@link TaskRow.digest}. */
  readonly digest: string;
  /** The stream's `BatchStreamRequest` as JSON text, without the rows of its source. */
  readonly request: string;
  readonly trainer: string;
  readonly status: 'running' | 'ended';
  /** Number of the last batch that was handed out; 0 before the first. */
  readonly last_batch: number;
  /** Number of the last batch that the trainer has requested. It is one more than `last_batch` while the trainer waits. */
  readonly requested_batch: number;
  /** Number of the last batch that the trainer has confirmed. */
  readonly acknowledged: number;
  /** The policy version that the trainer gave last; `null` before the first. */
  readonly policy_version: string | null;
  /** The step that `policy_version` names. */
  readonly policy_step: number | null;
  /** Size of the batch that the trainer has requested last, in the stream's `batch_unit`. */
  readonly requested_size: number;
  readonly row_count: number;
  /** 1 once the source has no further rows, else 0. */
  readonly rows_complete: number;
  /** Number of groups that were started. It is also the number of the next group. */
  readonly group_count: number;
  readonly epoch: number;
  /** Number of rows of the epoch that were started. */
  readonly position: number;
  /** Why the last request to the generator failed; `null` when it succeeded. */
  readonly source_error: string | null;
  /** Service time in milliseconds before which the generator is not requested after a failure. */
  readonly source_retry_ms: number;
  /** Service time in milliseconds at which the stream was ended; `null` while it runs. */
  readonly ended_ms: number | null;
  readonly created_at: string;
};

export type BatchStreamPatch = Partial<
  Omit<BatchStreamRow, 'batch_id' | 'digest' | 'request' | 'trainer' | 'created_at'>
>;

/** A row of a stream's data set, with the result of its last group. */
export type BatchDataRow = {
  readonly batch_id: string;
  readonly row_index: number;
  /** The row's fields as JSON text. */
  readonly fields: string;
  /** Why the row does not fit the template; `null` when it does. */
  readonly problem: string | null;
  readonly last_epoch: number | null;
  readonly mean_reward: number | null;
  readonly last_result: 'all_wrong' | 'all_right' | 'other' | null;
  /** Number of consecutive groups of the row that were rejected. */
  readonly rejections: number;
  /** 1 when the row is not sampled any more, else 0. */
  readonly retired: number;
};

export type BatchDataRowPatch = Partial<
  Pick<BatchDataRow, 'problem' | 'last_epoch' | 'mean_reward' | 'last_result' | 'rejections' | 'retired'>
>;

/**
 * State of a group:
 * - `running`: its task has not ended.
 * - `ready`: it was accepted and belongs to no batch yet.
 * - `handed`: it is in a batch.
 * - `rejected`: it is not used for training; `reason` states why.
 * - `expired`: it was accepted and became too old.
 * - `restarted`: the stream cancelled it while it ran.
 * - `cancelled`: its task was cancelled, but not by the stream, or the stream was ended.
 */
export type BatchGroupState = 'running' | 'ready' | 'handed' | 'rejected' | 'expired' | 'restarted' | 'cancelled';

/** One task of a stream. */
export type BatchGroupRow = {
  readonly batch_id: string;
  readonly group_no: number;
  readonly task_id: string;
  readonly row_index: number;
  readonly epoch: number;
  readonly state: BatchGroupState;
  /** Why the group was rejected; `null` in other states. */
  readonly reason: string | null;
  /** Step of the policy when the group was started; `null` when the trainer had named none. */
  readonly policy_step: number | null;
  /** Number of the batch; `null` while the group belongs to no batch. */
  readonly batch_no: number | null;
  /** 1 while the group's row must be started once more, else 0. */
  readonly repeat: number;
  /** Number of earlier groups that were started for the same visit of the row and failed because of the infrastructure. */
  readonly tries: number;
  readonly usable: number;
  readonly resolved: number;
  readonly mean_reward: number | null;
  readonly sessions: number;
  readonly sampled_tokens: number;
  /**
   * Number of usable samples by their staleness when the group was handed out, as a JSON object; `null` while the group belongs to no batch.
   */
  readonly staleness: string | null;
};

/** A group that runs, is ready, or whose row must be started once more. `is_stored` is 1 while its task is stored, else 0. */
export type OpenGroupRow = BatchGroupRow & { readonly is_stored: number };

/** A group in a batch, with the fields of its row as JSON text; `fields` is `null` for a row that is computed. */
export type HandedGroupRow = BatchGroupRow & { readonly fields: string | null };

export type BatchGroupPatch = Partial<
  Pick<
    BatchGroupRow,
    | 'state'
    | 'reason'
    | 'batch_no'
    | 'repeat'
    | 'usable'
    | 'resolved'
    | 'mean_reward'
    | 'sessions'
    | 'sampled_tokens'
    | 'staleness'
  >
>;

/** The groups of a stream that have one state and one reason. */
export type BatchGroupTotals = Pick<BatchGroupRow, 'state' | 'reason'> & {
  readonly groups: number;
  readonly sessions: number;
  readonly resolved: number;
  readonly sampled_tokens: number;
};

/** A change of the groups of a stream that have one state and one reason: one group more or less, or the sum of several such changes. */
export type BatchGroupChangeRow = BatchGroupTotals & Pick<BatchGroupRow, 'batch_id'>;

/** The number of a stream's rows that are not sampled: rows that do not fit the template (`invalid`) and retired rows. */
export type BatchRowTotals = { readonly invalid: number; readonly retired: number };

/** What decides on the next batch of a stream: its open groups, ordered by number, and the number of rows that are not sampled. */
export type OpenState = { readonly groups: readonly OpenGroupRow[]; readonly unsampledRows: BatchRowTotals };

/** The numbers of groups and rows of a stream. */
export type BatchCounts = {
  readonly groups: readonly BatchGroupTotals[];
  readonly unsampledRows: BatchRowTotals;
  /** The newest rejected groups after the newest accepted one, by reason. */
  readonly newestRejections: ReadonlyMap<string, number>;
};
