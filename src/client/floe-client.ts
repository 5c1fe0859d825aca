import { randomUUID } from 'node:crypto';
import { FloeError } from '../core/errors.ts';
import { parseAs } from '../core/parse.ts';
import {
  type AttemptView,
  attemptViewSchema,
  type EngineChange,
  type EngineSpecInput,
  type EnginesStatus,
  engineChangeSchema,
  enginesStatusSchema,
  MAX_ARTIFACTS_MB,
  type PauseMode,
  type RolloutEvent,
  type RolloutStatus,
  rolloutEventSchema,
  rolloutStatusSchema,
  type SessionResult,
  type SessionView,
  type SubmitReply,
  sessionViewSchema,
  submitReplySchema,
  type TaskRequestInput,
  type TaskState,
  type TaskStatus,
  type TaskSummary,
  type Trajectory,
  taskStatusSchema,
  taskSummarySchema,
} from '../schema/index.ts';
import { Connection, type ConnectionOptions, type Query } from './connection.ts';
import { linesOf } from './lines.ts';

/** As long as the server waits by itself. */
const CHANGE_WAIT_SECONDS = 15;

/** The server holds a request for results this long before the client asks again. */
const RESULTS_WAIT_SECONDS = 30;

/** The largest archive over a link of 1 MiB a second, beside the time of any answer. */
const ARCHIVE_SECONDS = MAX_ARTIFACTS_MB;

export type ChangeOptions = {
  /** How long the server waits for its nodes to carry the change out. Default 15. */
  readonly waitSeconds?: number;
  readonly signal?: AbortSignal;
};

export type PartOptions = {
  /** Of this attempt, instead of the one that ended the session. */
  readonly attempt?: number;
  readonly signal?: AbortSignal;
};

export type ResultsOptions = {
  /** Results after this cursor. Absent: from where the consumer was, or without one from the first. */
  readonly after?: number;
  /**
   * A name under which the server remembers, over restarts of both sides, how far its results were handled. A result is
   * handled when the next one is asked for.
   */
  readonly consumer?: string;
  /** Results of this trainer's tasks only. */
  readonly trainer?: string;
  /** Only look: the server does not take them as collected. */
  readonly peek?: boolean;
  /** Go on waiting when all results have been read. Default true. */
  readonly follow?: boolean;
  /** Results per request; default 100. */
  readonly pageSize?: number;
  readonly signal?: AbortSignal;
};

/**
 * A trainer's side of the control API. Every method throws a FloeError: the server's own, or `peer_unreachable` when it
 * cannot be reached. Of several replicas the next is asked when one cannot answer; beyond that nothing is retried without
 * `retrySeconds`. Every call is safe to repeat: a submit with neither `task_id` nor `idempotency_key` gets a key.
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

  /** A task with the token data of its finished sessions. */
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

  async sessions(taskId: string, signal?: AbortSignal): Promise<SessionView[]> {
    const reply = await this.connection.json('GET', `/tasks/${encodeURIComponent(taskId)}/sessions`, { signal });
    return parseAs(sessionViewSchema.array(), (reply as { sessions?: unknown }).sessions, 'sessions');
  }

  async session(sessionId: string, signal?: AbortSignal): Promise<SessionView> {
    const reply = await this.connection.json('GET', sessionPath(sessionId), { signal });
    return parseAs(sessionViewSchema, reply, 'session');
  }

  async cancelSession(sessionId: string, signal?: AbortSignal): Promise<SessionView> {
    const reply = await this.connection.json('DELETE', sessionPath(sessionId), { signal });
    return parseAs(sessionViewSchema, reply, 'session');
  }

  /** What nodes have delivered of each attempt at a session, the remains of those that were cut off included. */
  async attempts(sessionId: string, signal?: AbortSignal): Promise<AttemptView[]> {
    const reply = await this.connection.json('GET', `${sessionPath(sessionId)}/attempts`, { signal });
    return parseAs(attemptViewSchema.array(), (reply as { attempts?: unknown }).attempts, 'attempts');
  }

  /** Not checked against the schema: the arrays are large and were checked when they were built. */
  async trajectory(sessionId: string, { attempt, signal }: PartOptions = {}): Promise<Trajectory> {
    const path = `${sessionPath(sessionId)}/trajectory`;
    return (await this.connection.json('GET', path, { query: { attempt }, signal })) as Trajectory;
  }

  async completions(sessionId: string, { attempt, signal }: PartOptions = {}): Promise<Buffer> {
    return this.connection.bytes(`${sessionPath(sessionId)}/completions`, { query: { attempt }, signal });
  }

  /** A tar archive, compressed with gzip, of what the agent left behind. Throws `not_found` when there is none. */
  async artifacts(sessionId: string, { attempt, signal }: PartOptions = {}): Promise<Buffer> {
    return this.connection.bytes(`${sessionPath(sessionId)}/artifacts`, {
      query: { attempt },
      waitSeconds: ARCHIVE_SECONDS,
      signal,
    });
  }

  /** The engines that sessions may use, and on which nodes each is ready. */
  async engines(signal?: AbortSignal): Promise<EnginesStatus> {
    return parseAs(enginesStatusSchema, await this.connection.json('GET', '/engines', { signal }), 'engines');
  }

  /**
   * Registers an engine at every node; the reply says which nodes can use it, and what went wrong at the others. Throws `conflict`
   * when another has its id, unless that is to be replaced.
   */
  addEngine(spec: EngineSpecInput, options: ChangeOptions & { replace?: boolean } = {}): Promise<EngineChange> {
    return this.changeEngines('POST', '/engines', options, spec, { replace: options.replace });
  }

  /** Removes one engine. No call reaches it on the nodes that the reply lists as `done`. Throws `not_found`. */
  removeEngine(engineId: string, options: ChangeOptions = {}): Promise<EngineChange> {
    return this.changeEngines('DELETE', `/engines/${encodeURIComponent(engineId)}`, options);
  }

  clearEngines(options: ChangeOptions = {}): Promise<EngineChange> {
    return this.changeEngines('DELETE', '/engines', options);
  }

  /** Before a weight update: new calls wait or are refused with 429; those under way are kept or broken off. */
  pauseEngines(
    mode: PauseMode,
    options: ChangeOptions & { whilePaused?: 'hold' | 'reject' } = {},
  ): Promise<EngineChange> {
    return this.changeEngines('POST', '/engines/pause', options, { mode, while_paused: options.whilePaused ?? 'hold' });
  }

  resumeEngines(options: ChangeOptions = {}): Promise<EngineChange> {
    return this.changeEngines('POST', '/engines/resume', options);
  }

  /** Names the weights that engines sample with from now on, where they do not tell themselves. */
  setPolicyVersion(version: string, options: ChangeOptions = {}): Promise<EngineChange> {
    return this.changeEngines('POST', '/engines/version', options, { version });
  }

  async status(signal?: AbortSignal): Promise<RolloutStatus> {
    return parseAs(rolloutStatusSchema, await this.connection.json('GET', '/rollout/status', { signal }), 'status');
  }

  /**
   * Finished sessions in the order of their cursors, each with its token data. Asking for the next one tells the server that
   * all before it were handled. After an error go on under the same `consumer`, or with `after` set to the cursor of the
   * last result that was handled: nothing is lost; a result that was being handled may come again.
   */
  async *results(options: ResultsOptions = {}): AsyncGenerator<SessionResult> {
    const { follow = true, pageSize = 100, signal, consumer, trainer, peek } = options;
    const wait = follow ? RESULTS_WAIT_SECONDS : 0;
    const patience = this.connection.patience();
    let { after } = options;
    let failures = 0;
    for (;;) {
      const bytes = this.connection.stream('GET', '/rollout/results', {
        query: { after, limit: pageSize, wait, consumer, trainer, peek },
        accept: 'application/x-ndjson',
        // A page is read as fast as the caller handles it, which may take any time.
        limit: 'each piece',
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
          patience.reset();
          yield result;
        }
        patience.reset();
      } catch (thrown) {
        // A page that breaks off is gone on with at the next replica, and when all have failed after a pause.
        const gone = FloeError.is(thrown) && thrown.code === 'peer_unreachable' && signal?.aborted !== true;
        if (!gone || ++failures >= this.connection.replicas) await patience.afterFailure(thrown, signal);
        continue;
      }
      if (read === 0 && !follow) return;
    }
  }

  /** What happens from now on. Ends when the server ends the stream; events are not repeated. */
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
