import { MIB } from '@floe-rl/core';
import { ENVELOPE_TYPE, RESULT_LIMIT_BYTES } from '@floe-rl/core/protocol';
import type { Role } from '@floe-rl/core/schema';
import {
  addServerSchema,
  attemptViewSchema,
  batchReplySchema,
  batchRewindSchema,
  batchRowsReplySchema,
  batchRowsSchema,
  batchStalenessSchema,
  batchStreamRequestSchema,
  batchStreamViewSchema,
  deliveryReplySchema,
  engineChangeSchema,
  engineSpecSchema,
  enginesStatusSchema,
  heartbeatReplySchema,
  heartbeatSchema,
  idSchema,
  leaseReplySchema,
  leaseRequestSchema,
  nodeInfoSchema,
  nodeRegistrationSchema,
  partialReplySchema,
  pauseRequestSchema,
  resultsPageSchema,
  rolloutEventSchema,
  rolloutStatusSchema,
  sessionViewSchema,
  submitReplySchema,
  taskRequestSchema,
  taskStateSchema,
  taskStatusSchema,
  taskSummarySchema,
  tokenTextsReplySchema,
  tokenTextsRequestSchema,
  trajectorySchema,
  versionRequestSchema,
} from '@floe-rl/core/schema';
import { ADVANTAGE_METHODS, CONSTRAINED_USES, ENCODINGS, FORMAT_NAMES } from '@floe-rl/data/trainers';
import { z } from 'zod';
import { count, digits, ENGINE_WAIT_SECONDS, flag, seconds, waitSeconds } from './query-parameters.ts';
import { SESSION_LIST_API } from './session-list-api.ts';

/** Describes one call of the control API. The routes are registered from the table of all calls, and openapi.json is generated from it. */
export type RouteSpec = {
  readonly method: 'GET' | 'POST' | 'DELETE';
  /** The path pattern, whose only possible parameter is `:id`. */
  readonly path: string;
  readonly summary: string;
  readonly query?: z.ZodObject;
  readonly body?: z.ZodType;
  /** Media type of a body that the handler gets as bytes; `undefined` for a JSON body or no body. */
  readonly rawBody?: string;
  readonly bodyLimitBytes?: number;
  readonly reply: z.ZodType;
  /** Media types of the reply. Default: JSON. */
  readonly media?: readonly string[];
  /** Whether the route needs no token. */
  readonly open?: boolean;
  /** Present for a route of another system's API, which follows that system's rules. */
  readonly compatible?: CompatibleRules;
  /** The roles that may make the call, in addition to `admin`. */
  readonly roles: readonly Role[];
  /**
   * The listeners that serve the route. Default: `main`. The main listener also serves the `node` and `admin` routes when these have no
   * listener of their own.
   */
  readonly faces?: readonly Face[];
};

/**
 * Rules for the routes of another system's API. Ids in the path may be any text. A token may also be the password of `Authorization: Basic` or
 * the header `X-Polar-Control-Token`. Errors also have the field `detail`, like the errors of FastAPI.
 */
export type CompatibleRules = {
  /** Whether a caller without a token may make the call, with the role `viewer`. Browsers may not make it from a web page. */
  readonly anonymous?: boolean;
};

/** A group of routes that may have a separate listener: `main` for trainers and operators, `node` for nodes, `admin` for metrics. */
export type Face = 'main' | 'node' | 'admin';

/** Maximum size of a request with rows of a data set in bytes. */
const BATCH_BODY_LIMIT_BYTES = 64 * MIB;

const READERS = ['viewer', 'trainer'] as const;
const TRAINERS = ['trainer'] as const;
const NODES = ['node'] as const;
const NODE_FACE = ['node'] as const;
const EVERY_FACE = ['main', 'node', 'admin'] as const;

/** Query parameters of a call that changes the engines: for how many seconds the reply is held until every node has applied the change. */
const engineWait = z.strictObject({ wait: seconds.default(ENGINE_WAIT_SECONDS) });

const serverReply = engineChangeSchema.extend({ status: z.literal('ok') });

/**
 * Query parameters of a call that reads one part of a session's result, such as its trajectory. Without `attempt`, the part comes from the
 * session's final result.
 */
const ofAttempt = z.strictObject({ attempt: digits(1, 1000).optional() });

const statusReply = z.object({ status: z.string() });

export const API = {
  submitTask: {
    method: 'POST',
    roles: TRAINERS,
    path: '/rollout/task/submit',
    summary:
      'Submit a task. A repeat of the same body, with the same task_id or idempotency_key, gets the first reply.',
    body: taskRequestSchema,
    reply: submitReplySchema,
  },
  repeatTask: {
    method: 'POST',
    roles: TRAINERS,
    path: '/rollout/task/:id/repeat',
    summary: 'Submit a task again as a new one, with a new id and without its callback.',
    reply: submitReplySchema,
  },
  getTask: {
    method: 'GET',
    roles: READERS,
    path: '/rollout/task/:id',
    summary:
      'The state of a task and its finished sessions; `results=full` adds their token data, `wait` holds the request until the task has ended.',
    query: z.strictObject({ results: z.enum(['summary', 'full']).default('summary'), wait: waitSeconds }),
    reply: taskStatusSchema,
  },
  cancelTask: {
    method: 'DELETE',
    roles: TRAINERS,
    path: '/rollout/task/:id',
    summary:
      'Cancel a task. With `register_if_missing`, an unknown id is refused if it is submitted later. The reply lists at most the first 1000 results.',
    query: z.strictObject({ register_if_missing: flag }),
    reply: taskStatusSchema,
  },
  getResults: {
    method: 'GET',
    roles: READERS,
    path: '/rollout/results',
    summary:
      'Finished sessions after a cursor, in order; `wait` holds the request until there is one. Results up to `after` count as collected.',
    query: z.strictObject({
      after: digits(0, Number.MAX_SAFE_INTEGER).optional().describe("default: the consumer's cursor, or else 0"),
      trainer: idSchema.optional().describe('only results of this trainer'),
      consumer: idSchema
        .optional()
        .describe('a name under which the server stores the cursor up to which results were read'),
      peek: flag.describe('no result counts as collected, and no cursor is stored'),
      limit: count(1, 1000, 100),
      wait: waitSeconds,
    }),
    reply: resultsPageSchema,
    media: ['application/json', 'application/x-ndjson'],
  },
  createBatchStream: {
    method: 'POST',
    roles: TRAINERS,
    path: '/rollout/batches',
    summary:
      'Create a batch stream: the rows of a data set are sampled with a task template. A repeat with the same batch_id returns the stream.',
    body: batchStreamRequestSchema,
    bodyLimitBytes: BATCH_BODY_LIMIT_BYTES,
    reply: batchStreamViewSchema,
  },
  listBatchStreams: {
    method: 'GET',
    roles: READERS,
    path: '/rollout/batches',
    summary: 'The batch streams, newest first.',
    query: z.strictObject({ limit: count(1, 1000, 100) }),
    reply: z.object({ streams: z.array(batchStreamViewSchema) }),
  },
  getBatchStream: {
    method: 'GET',
    roles: READERS,
    path: '/rollout/batches/:id',
    summary: 'The state of a batch stream.',
    reply: batchStreamViewSchema,
  },
  batchStaleness: {
    method: 'GET',
    roles: READERS,
    path: '/rollout/batches/:id/staleness',
    summary: 'How old the samples in the newest batches of a stream were when they were handed out.',
    query: z.strictObject({ limit: count(1, 200, 50).describe('number of batches') }),
    reply: batchStalenessSchema,
  },
  endBatchStream: {
    method: 'DELETE',
    roles: TRAINERS,
    path: '/rollout/batches/:id',
    summary: 'End a batch stream: its running groups are cancelled.',
    reply: batchStreamViewSchema,
  },
  addBatchRows: {
    method: 'POST',
    roles: TRAINERS,
    path: '/rollout/batches/:id/rows',
    summary: 'Add rows to a batch stream whose source is `rows`; with `after`, a repeated request adds nothing twice.',
    body: batchRowsSchema,
    bodyLimitBytes: BATCH_BODY_LIMIT_BYTES,
    reply: batchRowsReplySchema,
  },
  rewindBatchStream: {
    method: 'POST',
    roles: TRAINERS,
    path: '/rollout/batches/:id/rewind',
    summary: 'Take back the batches after `after`, when a trainer has restored a checkpoint.',
    body: batchRewindSchema,
    reply: batchStreamViewSchema,
  },
  nextBatch: {
    method: 'GET',
    roles: TRAINERS,
    path: '/rollout/batches/:id/next',
    summary:
      'The batch after `after`; `wait` holds the request until it is complete. Repeating `after` returns the same batch, and a new batch confirms the earlier ones.',
    query: z.strictObject({
      size: digits(1, 100_000)
        .optional()
        .describe("number of groups, or of resolved samples; default: the stream's batch_size"),
      policy_version: z
        .string()
        .min(1)
        .max(256)
        .optional()
        .describe('version of the policy that trains on the batch; must end in its step'),
      after: digits(0, 2 ** 31 - 1)
        .optional()
        .describe('number of the last batch that the trainer has handled; default: the last one that was handed out'),
      wait: waitSeconds,
      format: z.enum(FORMAT_NAMES).optional().describe("trainer's format; default: the SessionResults themselves"),
      advantages: z.enum(ADVANTAGE_METHODS).optional(),
      per_session: flag.describe("divide a sample's advantage by its number of traces"),
      per_turn: flag.describe('an advantage for each reply, from its reward and those of the replies after it'),
      constrained: z
        .enum(CONSTRAINED_USES)
        .optional()
        .describe('mask: tokens that were sampled under a constraint are not trained; default: train'),
      options: z.string().max(4096).optional().describe('options of the format, as a JSON object'),
      encoding: z.enum(ENCODINGS).default('jsonl').describe('arrow: the body is the records as an Arrow IPC stream'),
    }),
    reply: batchReplySchema,
    media: ['application/json', 'application/vnd.apache.arrow.stream'],
  },
  getStatus: {
    method: 'GET',
    roles: READERS,
    path: '/rollout/status',
    summary: 'The state of the service, and every limit with its current value.',
    reply: rolloutStatusSchema,
  },
  listTasks: {
    method: 'GET',
    roles: READERS,
    path: '/tasks',
    summary: 'The tasks, newest first.',
    query: z.strictObject({ status: taskStateSchema.optional(), limit: count(1, 1000, 200) }),
    reply: z.object({ tasks: z.array(taskSummarySchema) }),
  },
  listSessions: {
    method: 'GET',
    roles: READERS,
    path: '/tasks/:id/sessions',
    summary: 'The sessions of a task, ordered by sample index.',
    reply: z.object({ task_id: z.string(), sessions: z.array(sessionViewSchema) }),
  },
  ...SESSION_LIST_API,
  getSession: {
    method: 'GET',
    roles: READERS,
    path: '/sessions/:id',
    summary: 'One session, while it runs and after it has ended.',
    reply: sessionViewSchema,
  },
  cancelSession: {
    method: 'DELETE',
    roles: TRAINERS,
    path: '/sessions/:id',
    summary: 'Cancel one session. A session that has ended stays as it is.',
    reply: sessionViewSchema,
  },
  listAttempts: {
    method: 'GET',
    roles: READERS,
    path: '/sessions/:id/attempts',
    summary: 'The deliveries of each attempt at a session, including partial results of attempts that did not finish.',
    reply: z.object({ session_id: z.string(), attempts: z.array(attemptViewSchema) }),
  },
  getTrajectory: {
    method: 'GET',
    roles: READERS,
    path: '/sessions/:id/trajectory',
    query: ofAttempt,
    summary: 'The trajectory of a finished session.',
    reply: trajectorySchema,
  },
  getCompletions: {
    method: 'GET',
    roles: READERS,
    path: '/sessions/:id/completions',
    query: ofAttempt,
    summary: 'The captured model calls of a finished session, as its node delivered them.',
    reply: z.unknown(),
  },
  getArtifacts: {
    method: 'GET',
    roles: READERS,
    path: '/sessions/:id/artifacts',
    query: ofAttempt,
    summary: 'The artifacts of a finished session, as one compressed tar archive.',
    reply: z.string().meta({ format: 'binary' }),
    media: ['application/gzip'],
  },
  tokenTexts: {
    method: 'POST',
    roles: READERS,
    path: '/token-texts',
    summary:
      'The text of each token id, for models whose tokenizer the server has (`tokenizers` of its configuration).',
    body: tokenTextsRequestSchema,
    reply: tokenTextsReplySchema,
  },
  registerNode: {
    method: 'POST',
    roles: NODES,
    faces: NODE_FACE,
    path: '/nodes/register',
    summary: 'Register a gateway node. A node may register repeatedly.',
    body: nodeRegistrationSchema,
    reply: nodeInfoSchema,
  },
  heartbeat: {
    method: 'POST',
    roles: NODES,
    faces: NODE_FACE,
    path: '/nodes/:id/heartbeat',
    summary: 'Renew the leases of the listed sessions; held until there is a session to stop.',
    body: heartbeatSchema,
    reply: heartbeatReplySchema,
  },
  lease: {
    method: 'POST',
    roles: NODES,
    faces: NODE_FACE,
    path: '/nodes/:id/lease',
    summary: 'Lease up to `slots` sessions to a node; held until there is one.',
    body: leaseRequestSchema,
    reply: leaseReplySchema,
  },
  deliverResult: {
    method: 'POST',
    roles: NODES,
    faces: NODE_FACE,
    path: '/nodes/:id/results',
    summary:
      'Deliver the result of a session: an envelope of SessionSummary, `trajectory`, `completions` and `artifacts`.',
    rawBody: ENVELOPE_TYPE,
    bodyLimitBytes: RESULT_LIMIT_BYTES,
    reply: deliveryReplySchema,
  },
  deliverPartial: {
    method: 'POST',
    roles: NODES,
    faces: NODE_FACE,
    path: '/nodes/:id/partials',
    summary:
      'Deliver the partial result of an attempt that did not finish, in the same envelope. It changes no session.',
    rawBody: ENVELOPE_TYPE,
    bodyLimitBytes: RESULT_LIMIT_BYTES,
    reply: partialReplySchema,
  },
  listNodes: {
    method: 'GET',
    roles: READERS,
    path: '/nodes',
    summary: 'All nodes.',
    reply: z.object({ nodes: z.array(nodeInfoSchema) }),
  },
  getNode: { method: 'GET', roles: READERS, path: '/nodes/:id', summary: 'One node.', reply: nodeInfoSchema },
  drainNode: {
    method: 'DELETE',
    roles: NODES,
    faces: ['node', 'main'],
    path: '/nodes/:id',
    summary: 'Drain a node: it gets no more sessions, and is removed once it is silent and holds none.',
    reply: nodeInfoSchema,
  },
  listEngines: {
    method: 'GET',
    roles: READERS,
    path: '/engines',
    summary: 'The engines that sessions may use, what each can do, and on which nodes it is ready.',
    reply: enginesStatusSchema,
  },
  addEngine: {
    method: 'POST',
    roles: TRAINERS,
    path: '/engines',
    summary: 'Register an engine at every node; `wait` holds the reply until the nodes have probed it.',
    query: engineWait.extend({ replace: flag.describe('replace an engine that has the same id') }),
    body: engineSpecSchema,
    reply: engineChangeSchema,
  },
  clearEngines: {
    method: 'DELETE',
    roles: TRAINERS,
    path: '/engines',
    summary: 'Remove all engines. The nodes that the reply lists as `done` make no more calls to them.',
    query: engineWait,
    reply: engineChangeSchema,
  },
  removeEngine: {
    method: 'DELETE',
    roles: TRAINERS,
    path: '/engines/:id',
    summary: 'Remove one engine. Calls in progress are completed.',
    query: engineWait,
    reply: engineChangeSchema,
  },
  pauseEngines: {
    method: 'POST',
    roles: TRAINERS,
    path: '/engines/pause',
    summary:
      'Pause the engines before a weight update: new calls wait or are refused, and calls in progress are kept or aborted.',
    query: engineWait,
    body: pauseRequestSchema,
    reply: engineChangeSchema,
  },
  resumeEngines: {
    method: 'POST',
    roles: TRAINERS,
    path: '/engines/resume',
    summary: 'Resume the engines after a weight update: waiting calls proceed, and aborted replies are continued.',
    query: engineWait,
    reply: engineChangeSchema,
  },
  setEngineVersion: {
    method: 'POST',
    roles: TRAINERS,
    path: '/engines/version',
    summary:
      'Name the weights with which engines sample from now on, for engines that do not report a version themselves.',
    query: engineWait,
    body: versionRequestSchema,
    reply: engineChangeSchema,
  },
  addLlmServer: {
    method: 'POST',
    roles: TRAINERS,
    compatible: {},
    path: '/add_llm_server',
    summary: "ProRL Agent's name for registering a vLLM server.",
    body: addServerSchema,
    reply: serverReply.extend({ address: z.string() }),
  },
  clearLlmServer: {
    method: 'POST',
    roles: TRAINERS,
    compatible: {},
    path: '/clear_llm_server',
    summary: "ProRL Agent's name for removing all engines.",
    reply: serverReply,
  },
  events: {
    method: 'GET',
    roles: READERS,
    path: '/events',
    summary: 'Server-sent events about tasks and sessions from now on.',
    reply: rolloutEventSchema,
    media: ['text/event-stream'],
  },
  health: {
    method: 'GET',
    roles: READERS,
    faces: EVERY_FACE,
    path: '/health',
    summary: 'The process is alive.',
    reply: statusReply,
    open: true,
  },
  ready: {
    method: 'GET',
    roles: READERS,
    faces: EVERY_FACE,
    path: '/ready',
    summary: 'The store works and requests are accepted.',
    reply: statusReply,
    open: true,
  },
  openapi: {
    method: 'GET',
    roles: READERS,
    path: '/openapi.json',
    summary: 'This OpenAPI document.',
    reply: z.looseObject({}),
  },
  metrics: {
    method: 'GET',
    roles: READERS,
    faces: ['admin'],
    path: '/metrics',
    summary: 'Metrics for Prometheus.',
    reply: z.string(),
    media: ['text/plain'],
  },
} as const satisfies Record<string, RouteSpec>;

export type Api = typeof API;
export type RouteName = keyof Api;
