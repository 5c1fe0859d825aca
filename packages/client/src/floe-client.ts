import { randomUUID } from 'node:crypto';
import { FloeError, parseAs } from '@floe-rl/core';
import {
  type AttemptView,
  attemptViewSchema,
  type BatchReply,
  type BatchRowsReply,
  type BatchStaleness,
  type BatchStreamRequestInput,
  type BatchStreamView,
  batchRowsReplySchema,
  batchStalenessSchema,
  batchStreamViewSchema,
  type EngineChange,
  type EngineSpecInput,
  type EnginesStatus,
  engineChangeSchema,
  enginesStatusSchema,
  type GroupFacts,
  groupFactsPageSchema,
  type HistogramField,
  type LiveSessions,
  liveSessionsSchema,
  MAX_ARTIFACTS_MB,
  type MeasureKind,
  type PauseMode,
  type RolloutEvent,
  type RolloutStatus,
  rolloutEventSchema,
  rolloutStatusSchema,
  type SessionFacts,
  type SessionGrouping,
  type SessionHistogram,
  type SessionMeasures,
  type SessionResult,
  type SessionTotals,
  type SessionView,
  type SubmitReply,
  sessionFactsPageSchema,
  sessionHistogramSchema,
  sessionMeasuresReplySchema,
  sessionTotalsReplySchema,
  sessionViewSchema,
  submitReplySchema,
  type TaskRequestInput,
  type TaskState,
  type TaskStatus,
  type TaskSummary,
  type Trajectory,
  taskStatusSchema,
  taskSummarySchema,
} from '@floe-rl/core/schema';
import { Connection, type ConnectionOptions, linesOf, type Query } from './connection.ts';
import { filterQuery, type SessionFilter } from './session-filter.ts';

/** Default of {@link ChangeOptions.waitSeconds}, which is also the server's default. */
const CHANGE_WAIT_SECONDS = 15;

/**
 * Longest time in seconds that the server holds a request until there are results or a batch, or until a task has ended. Methods that follow
 * results, batches or a task then send the request again; `nextBatch` does not.
 */
const RESULTS_WAIT_SECONDS = 30;

/** Time to download the largest archive of artifacts at 1 MiB per second, in seconds. It is added to the default time limit of a reply. */
const ARCHIVE_SECONDS = MAX_ARTIFACTS_MB;

export type ChangeOptions = {
  /** Longest time that the server waits for its nodes to apply the change, in seconds. Default: 15. */
  readonly waitSeconds?: number;
  readonly signal?: AbortSignal;
};

export type PartOptions = {
  /** Number of the attempt whose data is read. Default: the attempt that ended the session. */
  readonly attempt?: number;
  readonly signal?: AbortSignal;
};

export type ResultsOptions = {
  /** Return only results after this cursor. Default: the stored position of `consumer`; without a consumer, the first result. */
  readonly after?: number;
  /**
   * The server stores the position of the last handled result under this name. It survives restarts of server and client. A result counts as
   * handled when the next one is requested.
   */
  readonly consumer?: string;
  /** Return only results of this trainer's tasks. */
  readonly trainer?: string;
  /** Whether to read without marking the results as collected by a trainer. Default: false. */
  readonly peek?: boolean;
  /** Whether to wait for further results when all have been read. Default: true. */
  readonly follow?: boolean;
  /** Maximum number of results per request. Default: 100. */
  readonly pageSize?: number;
  readonly signal?: AbortSignal;
};

/**
 * The order of a list of ended sessions: by the time of their end or by a value, and with `-` from the greatest to the least value. Sessions
 * without the value come last.
 */
export type SessionOrder = 'newest' | 'oldest' | `${'' | '-'}${'reward' | 'turns' | 'tokens' | 'seconds'}`;

export type PageOptions = {
  /** Maximum number of entries per request. Default: 100. */
  readonly pageSize?: number;
  readonly signal?: AbortSignal;
};

/** What {@link FloeClient.nextBatch} and {@link FloeClient.batches} request. */
export type BatchOptions = {
  /** Number of groups. Default: the stream's `batch_size`. */
  readonly size?: number;
  /** Trainer's format of the records, such as `trl_async`; see docs/trainer-formats.md. Default: the groups have their results. */
  readonly format?: string;
  readonly advantages?: 'none' | 'grpo' | 'centered' | 'leave_one_out';
  /** Whether a sample's advantage is divided by its number of traces. */
  readonly perSession?: boolean;
  /** Whether each reply has an advantage of its own, from its reward and the rewards of the replies after it. */
  readonly perTurn?: boolean;
  /** What happens to trained tokens that were sampled under a constraint. Default: `train`. */
  readonly constrained?: 'train' | 'mask';
  /** Options of the format. */
  readonly formatOptions?: Readonly<Record<string, unknown>>;
  readonly signal?: AbortSignal;
};

export type NextBatchOptions = BatchOptions & {
  /** Version of the policy that trains on the batch. */
  readonly policyVersion?: string;
  /**
   * Number of the last batch that was handled. Default: the batch that was handed out last. By default, a repeated call therefore skips a
   * batch.
   */
  readonly after?: number;
  /** Longest time in seconds that the server waits for a complete batch. Default: 30. */
  readonly waitSeconds?: number;
};

export type FollowBatchesOptions = BatchOptions & {
  /** Returns the version of the policy that trains on the next batch. It is called before each request. */
  readonly policyVersion?: () => string;
  /** Number of the last batch that was handled, from a checkpoint. Default: the batch that was handed out last. */
  readonly after?: number;
};

/**
 * The control API for trainers. Every method throws a FloeError: the server's own, or `peer_unreachable` when the server cannot be reached.
 * With several replicas, a call that one replica cannot serve is sent to the next. Beyond that, calls are retried only with `retrySeconds`.
 * Every call may be repeated safely: a submission without `task_id` and `idempotency_key` gets a generated key.
 */
export class FloeClient {
  private readonly connection: Connection;

  constructor(options: ConnectionOptions) {
    this.connection = new Connection(options);
  }

  async submit(task: TaskRequestInput, signal?: AbortSignal): Promise<SubmitReply> {
    const isNamed = task.task_id != null || task.idempotency_key != null;
    const body = isNamed ? task : { ...task, idempotency_key: `client-${randomUUID()}` };
    const reply = await this.connection.json('POST', '/rollout/task/submit', { body, signal });
    return parseAs(submitReplySchema, reply, 'reply to submit');
  }

  async task(taskId: string, signal?: AbortSignal): Promise<TaskStatus> {
    return parseAs(taskStatusSchema, await this.connection.json('GET', taskPath(taskId), { signal }), 'task');
  }

  /** Waits until a task has ended, and resolves with its status. */
  async endedTask(taskId: string, signal?: AbortSignal): Promise<TaskStatus> {
    for (;;) {
      const given = { query: { wait: RESULTS_WAIT_SECONDS }, waitSeconds: RESULTS_WAIT_SECONDS, signal };
      const task = parseAs(taskStatusSchema, await this.connection.json('GET', taskPath(taskId), given), 'task');
      if (task.status !== 'running') return task;
    }
  }

  /** Returns the finished sessions of a task with their token data. */
  async taskResults(taskId: string, signal?: AbortSignal): Promise<SessionResult[]> {
    const reply = await this.connection.json('GET', taskPath(taskId), { query: { results: 'full' }, signal });
    return (reply as { results: SessionResult[] }).results;
  }

  async tasks(filter: { status?: TaskState; limit?: number } = {}, signal?: AbortSignal): Promise<TaskSummary[]> {
    const reply = await this.connection.json('GET', '/tasks', { query: filter, signal });
    return parseAs(taskSummarySchema.array(), (reply as { tasks?: unknown }).tasks, 'tasks');
  }

  async cancel(
    taskId: string,
    options: { registerIfMissing?: boolean; signal?: AbortSignal } = {},
  ): Promise<TaskStatus> {
    const query = { register_if_missing: options.registerIfMissing };
    const reply = await this.connection.json('DELETE', taskPath(taskId), { query, signal: options.signal });
    return parseAs(taskStatusSchema, reply, 'reply to cancel');
  }

  /** Submits a task again as a new one, with a new id and without its callback. */
  async repeat(taskId: string, signal?: AbortSignal): Promise<SubmitReply> {
    const reply = await this.connection.json('POST', `${taskPath(taskId)}/repeat`, { signal });
    return parseAs(submitReplySchema, reply, 'reply to repeat');
  }

  async sessions(taskId: string, signal?: AbortSignal): Promise<SessionView[]> {
    const reply = await this.connection.json('GET', `/tasks/${encodeURIComponent(taskId)}/sessions`, { signal });
    return parseAs(sessionViewSchema.array(), (reply as { sessions?: unknown }).sessions, 'sessions');
  }

  /**
   * Yields the ended sessions that match a filter, by default newest first. With newest first, sessions that end during the iteration are not
   * yielded.
   */
  async *endedSessions(
    filter: SessionFilter = {},
    { order, pageSize, signal }: PageOptions & { readonly order?: SessionOrder } = {},
  ): AsyncGenerator<SessionFacts> {
    for (let after: string | undefined; ; ) {
      const query: Query = { ...filterQuery(filter), order, limit: pageSize, after };
      const reply = await this.connection.json('GET', '/sessions', { query, signal });
      const page = parseAs(sessionFactsPageSchema, reply, 'sessions');
      yield* page.sessions;
      if (page.next === null) return;
      after = page.next;
    }
  }

  /** Returns sums and means over the ended sessions that match a filter: one for each combination of the values of `by`. */
  async sessionTotals(
    by: readonly SessionGrouping[] = [],
    filter: SessionFilter = {},
    signal?: AbortSignal,
  ): Promise<SessionTotals[]> {
    const query = { ...filterQuery(filter), by: by.length === 0 ? undefined : by.join(',') };
    const reply = await this.connection.json('GET', '/sessions/totals', { query, signal });
    return parseAs(sessionTotalsReplySchema, reply, 'totals').groups;
  }

  /** Returns measures of the ended sessions that match a filter, by kind and name, for each combination of the values of `by`. */
  async sessionMeasures(
    of: readonly MeasureKind[],
    by: readonly SessionGrouping[] = [],
    filter: SessionFilter = {},
    signal?: AbortSignal,
  ): Promise<SessionMeasures> {
    const query = { ...filterQuery(filter), of: of.join(','), by: by.length === 0 ? undefined : by.join(',') };
    const reply = await this.connection.json('GET', '/sessions/measures', { query, signal });
    return parseAs(sessionMeasuresReplySchema, reply, 'measures');
  }

  /** Returns how a value of the ended sessions that match a filter is distributed. The server's default is 40 intervals. */
  async sessionHistogram(
    of: HistogramField,
    filter: SessionFilter = {},
    { bins, signal }: { bins?: number; signal?: AbortSignal } = {},
  ): Promise<SessionHistogram> {
    const query = { ...filterQuery(filter), of, bins };
    const reply = await this.connection.json('GET', '/sessions/histogram', { query, signal });
    return parseAs(sessionHistogramSchema, reply, 'histogram');
  }

  /** Yields the tasks that have ended sessions which match a filter, with the rewards of these sessions, newest first. */
  async *groups(filter: SessionFilter = {}, { pageSize, signal }: PageOptions = {}): AsyncGenerator<GroupFacts> {
    for (let after: string | undefined; ; ) {
      const query: Query = { ...filterQuery(filter), limit: pageSize, after };
      const page = parseAs(
        groupFactsPageSchema,
        await this.connection.json('GET', '/groups', { query, signal }),
        'groups',
      );
      yield* page.groups;
      if (page.next === null) return;
      after = page.next;
    }
  }

  async session(sessionId: string, signal?: AbortSignal): Promise<SessionView> {
    const reply = await this.connection.json('GET', sessionPath(sessionId), { signal });
    return parseAs(sessionViewSchema, reply, 'session');
  }

  /**
   * Returns the sessions that nodes run now, at most 200 by default; sessions that were submitted earlier come first. {@link events} has their
   * changes.
   */
  async liveSessions(
    options: { readonly task?: string; readonly limit?: number; readonly signal?: AbortSignal } = {},
  ): Promise<LiveSessions> {
    const { signal, ...query } = options;
    return parseAs(
      liveSessionsSchema,
      await this.connection.json('GET', '/sessions/live', { query, signal }),
      'sessions',
    );
  }

  async cancelSession(sessionId: string, signal?: AbortSignal): Promise<SessionView> {
    const reply = await this.connection.json('DELETE', sessionPath(sessionId), { signal });
    return parseAs(sessionViewSchema, reply, 'session');
  }

  /**
   * Returns everything that nodes have delivered for a session, one entry per attempt, including partial results of interrupted attempts.
   */
  async attempts(sessionId: string, signal?: AbortSignal): Promise<AttemptView[]> {
    const reply = await this.connection.json('GET', `${sessionPath(sessionId)}/attempts`, { signal });
    return parseAs(attemptViewSchema.array(), (reply as { attempts?: unknown }).attempts, 'attempts');
  }

  /**
   * Returns the trajectory of a session. The reply is not validated, because its arrays are large and were validated when they were built.
   */
  async trajectory(sessionId: string, { attempt, signal }: PartOptions = {}): Promise<Trajectory> {
    const path = `${sessionPath(sessionId)}/trajectory`;
    return (await this.connection.json('GET', path, { query: { attempt }, signal })) as Trajectory;
  }

  async completions(sessionId: string, { attempt, signal }: PartOptions = {}): Promise<Buffer> {
    return this.connection.bytes(`${sessionPath(sessionId)}/completions`, { query: { attempt }, signal });
  }

  /** Returns the files that the agent left, as a tar archive compressed with gzip. Throws `not_found` when the session has no archive. */
  async artifacts(sessionId: string, { attempt, signal }: PartOptions = {}): Promise<Buffer> {
    return this.connection.bytes(`${sessionPath(sessionId)}/artifacts`, {
      query: { attempt },
      waitSeconds: ARCHIVE_SECONDS,
      signal,
    });
  }

  /** Returns the engines that sessions may use, with the state of each engine on every node. */
  async engines(signal?: AbortSignal): Promise<EnginesStatus> {
    return parseAs(enginesStatusSchema, await this.connection.json('GET', '/engines', { signal }), 'engines');
  }

  /**
   * Registers an engine with every node. The reply lists the nodes that can use it and the problems of the other nodes. Throws `conflict`
   * when another engine has the same id and `replace` is not set.
   */
  addEngine(spec: EngineSpecInput, options: ChangeOptions & { replace?: boolean } = {}): Promise<EngineChange> {
    return this.changeEngines('POST', '/engines', options, spec, { replace: options.replace });
  }

  /** Removes an engine. Nodes that the reply lists as `done` no longer call it. Throws `not_found` when there is no such engine. */
  removeEngine(engineId: string, options: ChangeOptions = {}): Promise<EngineChange> {
    return this.changeEngines('DELETE', `/engines/${encodeURIComponent(engineId)}`, options);
  }

  clearEngines(options: ChangeOptions = {}): Promise<EngineChange> {
    return this.changeEngines('DELETE', '/engines', options);
  }

  /**
   * Pauses engines before a weight update. New calls wait or, with `whilePaused: 'reject'`, are rejected with 429. Calls in progress are
   * frozen or aborted, depending on `mode`.
   */
  pauseEngines(
    mode: PauseMode,
    options: ChangeOptions & { whilePaused?: 'hold' | 'reject' } = {},
  ): Promise<EngineChange> {
    return this.changeEngines('POST', '/engines/pause', options, { mode, while_paused: options.whilePaused ?? 'hold' });
  }

  resumeEngines(options: ChangeOptions = {}): Promise<EngineChange> {
    return this.changeEngines('POST', '/engines/resume', options);
  }

  /** Sets the policy version that engines sample with from now on, for engines that do not report it themselves. */
  setPolicyVersion(version: string, options: ChangeOptions = {}): Promise<EngineChange> {
    return this.changeEngines('POST', '/engines/version', options, { version });
  }

  /**
   * Creates a stream of batches of informative groups. A repeat of the same request with the same `batch_id` returns the stream as it is; a
   * different request throws `conflict`.
   */
  async createBatchStream(request: BatchStreamRequestInput, signal?: AbortSignal): Promise<BatchStreamView> {
    const body = request.batch_id === undefined ? { ...request, batch_id: `batch-${randomUUID()}` } : request;
    const reply = await this.connection.json('POST', '/rollout/batches', { body, signal });
    return parseAs(batchStreamViewSchema, reply, 'batch stream');
  }

  async batchStreams(signal?: AbortSignal): Promise<BatchStreamView[]> {
    const reply = await this.connection.json('GET', '/rollout/batches', { signal });
    return parseAs(batchStreamViewSchema.array(), (reply as { streams?: unknown }).streams, 'batch streams');
  }

  async batchStream(batchId: string, signal?: AbortSignal): Promise<BatchStreamView> {
    return parseAs(batchStreamViewSchema, await this.connection.json('GET', batchPath(batchId), { signal }), 'stream');
  }

  /** Returns how old the samples in the newest batches of a stream were when they were handed out. */
  async batchStaleness(batchId: string, limit?: number, signal?: AbortSignal): Promise<BatchStaleness> {
    const reply = await this.connection.json('GET', `${batchPath(batchId)}/staleness`, { query: { limit }, signal });
    return parseAs(batchStalenessSchema, reply, 'staleness');
  }

  /** Ends a stream: its running groups are cancelled, and there is no further batch. */
  async endBatchStream(batchId: string, signal?: AbortSignal): Promise<BatchStreamView> {
    const reply = await this.connection.json('DELETE', batchPath(batchId), { signal });
    return parseAs(batchStreamViewSchema, reply, 'batch stream');
  }

  /** Adds rows to a stream. `after` is the number of rows that the stream has before the call; with it, the call may be repeated. */
  async addBatchRows(
    batchId: string,
    rows: readonly Readonly<Record<string, unknown>>[],
    { after, last = false, signal }: { after?: number; last?: boolean; signal?: AbortSignal } = {},
  ): Promise<BatchRowsReply> {
    const body = { rows, last, ...(after === undefined ? {} : { after }) };
    const reply = await this.connection.json('POST', `${batchPath(batchId)}/rows`, { body, signal });
    return parseAs(batchRowsReplySchema, reply, 'reply to added rows');
  }

  /** Takes back the batches after number `after`, when a trainer has restored a checkpoint with this policy version. */
  async rewindBatchStream(batchId: string, after: number, policyVersion: string): Promise<BatchStreamView> {
    const body = { after, policy_version: policyVersion };
    const reply = await this.connection.json('POST', `${batchPath(batchId)}/rewind`, { body });
    return parseAs(batchStreamViewSchema, reply, 'batch stream');
  }

  /**
   * Returns the batch after `after`; its `batch` is `null` when there is none yet. The same `after` returns the same batch. Results and records
   * are not validated, because they are large and were validated when they were made.
   */
  async nextBatch(batchId: string, options: NextBatchOptions = {}): Promise<BatchReply> {
    const { size, policyVersion, after, waitSeconds = RESULTS_WAIT_SECONDS, format, signal } = options;
    const { advantages, perSession, perTurn, constrained, formatOptions } = options;
    const query = {
      size,
      policy_version: policyVersion,
      after,
      wait: waitSeconds,
      format,
      advantages,
      per_session: perSession,
      per_turn: perTurn,
      constrained,
      options: formatOptions === undefined ? undefined : JSON.stringify(formatOptions),
    };
    const reply = await this.connection.json('GET', `${batchPath(batchId)}/next`, { query, waitSeconds, signal });
    return reply as BatchReply;
  }

  /**
   * Yields the batches of a stream until it has no more. Requesting the next batch confirms the earlier ones. After an error, continue with
   * `after` set to the number of the last batch that was handled: no batch is then skipped or trained twice.
   */
  async *batches(batchId: string, options: FollowBatchesOptions = {}): AsyncGenerator<BatchReply> {
    const { policyVersion, ...rest } = options;
    let after = options.after ?? (await this.batchStream(batchId, options.signal)).batch;
    for (;;) {
      const reply = await this.nextBatch(batchId, { ...rest, after, policyVersion: policyVersion?.() });
      if (reply.batch !== null) {
        after = reply.batch;
        yield reply;
      } else if (reply.done) return;
    }
  }

  async status(signal?: AbortSignal): Promise<RolloutStatus> {
    return parseAs(rolloutStatusSchema, await this.connection.json('GET', '/rollout/status', { signal }), 'status');
  }

  /**
   * Yields finished sessions with their token data, in the order of their cursors. Requesting the next result acknowledges all earlier
   * ones. After an error, continue with the same `consumer`, or with `after` set to the cursor of the last result that was handled. No
   * result is then lost, but the result that was being handled may be repeated.
   */
  async *results(options: ResultsOptions = {}): AsyncGenerator<SessionResult> {
    const { follow = true, pageSize = 100, signal, consumer, trainer, peek } = options;
    const wait = follow ? RESULTS_WAIT_SECONDS : 0;
    const budget = this.connection.retryBudget();
    let { after } = options;
    let failures = 0;
    for (;;) {
      const bytes = this.connection.stream('GET', '/rollout/results', {
        query: { after, limit: pageSize, wait, consumer, trainer, peek },
        accept: 'application/x-ndjson',
        // The time limit applies to each wait for a chunk, because the caller may take any time to handle results while a page is being
        // read.
        limit: 'chunk',
        waitSeconds: wait,
        signal,
      });
      let read = 0;
      try {
        for await (const line of linesOf(bytes)) {
          const result = JSON.parse(line) as SessionResult;
          after = result.cursor ?? after;
          read++;
          failures = 0;
          budget.reset();
          yield result;
        }
        budget.reset();
      } catch (thrown) {
        // After an interruption, the rest of the page of results is read from the next replica. A pause comes first when every replica has
        // failed.
        const isInterrupted = FloeError.is(thrown) && thrown.code === 'peer_unreachable' && signal?.aborted !== true;
        if (!isInterrupted || ++failures >= this.connection.replicaCount) await budget.waitAfter(thrown, signal);
        continue;
      }
      if (read === 0 && !follow) return;
    }
  }

  /**
   * Yields the events from now on until the server ends the stream. Events that happen while the client is not connected are not sent
   * later.
   */
  async *events(signal?: AbortSignal): AsyncGenerator<RolloutEvent> {
    const bytes = this.connection.stream('GET', '/events', { accept: 'text/event-stream', limit: 'head', signal });
    for await (const line of linesOf(bytes)) {
      if (!line.startsWith('data: ')) continue;
      yield parseAs(rolloutEventSchema, JSON.parse(line.slice('data: '.length)), 'event');
    }
  }

  async close(): Promise<void> {
    await this.connection.close();
  }

  private async changeEngines(
    method: 'POST' | 'DELETE',
    path: string,
    { waitSeconds = CHANGE_WAIT_SECONDS, signal }: ChangeOptions,
    body?: unknown,
    query: Query = {},
  ): Promise<EngineChange> {
    const given = { body, query: { ...query, wait: waitSeconds }, waitSeconds, signal };
    const reply = await this.connection.json(method, path, given);
    return parseAs(engineChangeSchema, reply, 'reply to a change of engines');
  }
}

function taskPath(taskId: string): string {
  return `/rollout/task/${encodeURIComponent(taskId)}`;
}

function sessionPath(sessionId: string): string {
  return `/sessions/${encodeURIComponent(sessionId)}`;
}

function batchPath(batchId: string): string {
  return `/rollout/batches/${encodeURIComponent(batchId)}`;
}
