import { z } from 'zod';
import { ENVELOPE_TYPE, RESULT_LIMIT_BYTES } from '../../core/envelope.ts';
import {
  addServerSchema,
  attemptViewSchema,
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
  trajectorySchema,
  versionRequestSchema,
} from '../../schema/index.ts';
import type { Role } from '../config.ts';

/** One call of the control API. openapi.json is generated from these, and the routes are registered from them. */
export type RouteSpec = {
  readonly method: 'GET' | 'POST' | 'DELETE';
  /** `:id` is the only parameter there is. */
  readonly path: string;
  readonly summary: string;
  readonly query?: z.ZodObject;
  readonly body?: z.ZodType;
  /** The body is opaque bytes of this type. */
  readonly rawBody?: string;
  readonly bodyLimitBytes?: number;
  readonly reply: z.ZodType;
  /** Media types of the reply; default: JSON. */
  readonly media?: readonly string[];
  /** Answered without a token. */
  readonly open?: boolean;
  /** Who may call it beside an admin. */
  readonly roles: readonly Role[];
  /** Listeners that have it; default: the main one. One that is not configured is part of the main one. */
  readonly faces?: readonly Face[];
};

/** `main`: trainers and people. `node`: gateway nodes. `admin`: metrics. */
export type Face = 'main' | 'node' | 'admin';

const READERS = ['viewer', 'trainer'] as const;
const TRAINERS = ['trainer'] as const;
const NODES = ['node'] as const;
const NODE_FACE = ['node'] as const;
const EVERY_FACE = ['main', 'node', 'admin'] as const;

/** Holding a request for longer gains nothing and runs into the timeouts of middle boxes. */
const MAX_WAIT_SECONDS = 60;

const digits = (min: number, max: number) =>
  z
    .string()
    .regex(/^[0-9]{1,15}$/, 'must be a whole number')
    .transform(Number)
    .pipe(z.int().min(min).max(max));

const count = (min: number, max: number, fallback: number) => digits(min, max).default(fallback);

/** A node hears of a change at once, and an engine that answers is probed within this time. */
const ENGINE_WAIT_SECONDS = 15;

const seconds = z
  .string()
  .regex(/^[0-9]{1,3}(\.[0-9]{1,6})?$/, 'must be a number of seconds')
  .transform(Number)
  .pipe(z.number().max(MAX_WAIT_SECONDS));

const waitSeconds = seconds.default(0);

/** Held until every node has carried the change out. */
const engineWait = z.strictObject({ wait: seconds.default(ENGINE_WAIT_SECONDS) });

const serverReply = engineChangeSchema.extend({ status: z.literal('ok') });

const flag = z
  .enum(['true', 'false', '1', '0'])
  .default('false')
  .transform((text) => text === 'true' || text === '1');

/** Parts are those of the result, or of the attempt that is named. */
const ofAttempt = z.strictObject({ attempt: digits(1, 1000).optional() });

const statusReply = z.object({ status: z.string() });

export const API = {
  submitTask: {
    method: 'POST',
    roles: TRAINERS,
    path: '/rollout/task/submit',
    summary: 'Submit a task. The same body again, by task_id or idempotency_key, gets the first reply.',
    body: taskRequestSchema,
    reply: submitReplySchema,
  },
  getTask: {
    method: 'GET',
    roles: READERS,
    path: '/rollout/task/:id',
    summary: 'State of a task and its finished sessions; `results=full` adds their token data.',
    query: z.strictObject({ results: z.enum(['summary', 'full']).default('summary') }),
    reply: taskStatusSchema,
  },
  cancelTask: {
    method: 'DELETE',
    roles: TRAINERS,
    path: '/rollout/task/:id',
    summary:
      'Cancel a task. With `register_if_missing` an unknown id is refused should it be submitted later. The reply lists its first 1000 results at most.',
    query: z.strictObject({ register_if_missing: flag }),
    reply: taskStatusSchema,
  },
  getResults: {
    method: 'GET',
    roles: READERS,
    path: '/rollout/results',
    summary:
      'Finished sessions after a cursor, in order; `wait` holds the request until there is one. What is up to `after` counts as collected.',
    query: z.strictObject({
      after: digits(0, Number.MAX_SAFE_INTEGER).optional().describe('default: where the consumer was, else 0'),
      trainer: idSchema.optional().describe('results of its tasks only'),
      consumer: idSchema.optional().describe('a name under which the server remembers how far it was read'),
      peek: flag.describe('only look: nothing counts as collected'),
      limit: count(1, 1000, 100),
      wait: waitSeconds,
    }),
    reply: resultsPageSchema,
    media: ['application/json', 'application/x-ndjson'],
  },
  getStatus: {
    method: 'GET',
    roles: READERS,
    path: '/rollout/status',
    summary: 'What runs, and every limit with its current value.',
    reply: rolloutStatusSchema,
  },
  listTasks: {
    method: 'GET',
    roles: READERS,
    path: '/tasks',
    summary: 'Tasks, newest first.',
    query: z.strictObject({ status: taskStateSchema.optional(), limit: count(1, 1000, 200) }),
    reply: z.object({ tasks: z.array(taskSummarySchema) }),
  },
  listSessions: {
    method: 'GET',
    roles: READERS,
    path: '/tasks/:id/sessions',
    summary: 'The sessions of a task, by sample index.',
    reply: z.object({ task_id: z.string(), sessions: z.array(sessionViewSchema) }),
  },
  getSession: {
    method: 'GET',
    roles: READERS,
    path: '/sessions/:id',
    summary: 'One session, while it runs and after.',
    reply: sessionViewSchema,
  },
  cancelSession: {
    method: 'DELETE',
    roles: TRAINERS,
    path: '/sessions/:id',
    summary: 'Cancel one session; one that has ended stays as it is.',
    reply: sessionViewSchema,
  },
  listAttempts: {
    method: 'GET',
    roles: READERS,
    path: '/sessions/:id/attempts',
    summary: 'What nodes have delivered of each attempt at a session, the remains of one that was cut off included.',
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
    summary: 'What the agent of a finished session left behind, as one compressed tar archive.',
    reply: z.string().meta({ format: 'binary' }),
    media: ['application/gzip'],
  },
  registerNode: {
    method: 'POST',
    roles: NODES,
    faces: NODE_FACE,
    path: '/nodes/register',
    summary: 'A gateway node joins, or joins again.',
    body: nodeRegistrationSchema,
    reply: nodeInfoSchema,
  },
  heartbeat: {
    method: 'POST',
    roles: NODES,
    faces: NODE_FACE,
    path: '/nodes/:id/heartbeat',
    summary: 'Renews the leases of the listed sessions; held until there is something to stop.',
    body: heartbeatSchema,
    reply: heartbeatReplySchema,
  },
  lease: {
    method: 'POST',
    roles: NODES,
    faces: NODE_FACE,
    path: '/nodes/:id/lease',
    summary: 'A node takes up to `slots` sessions; held until there is one.',
    body: leaseRequestSchema,
    reply: leaseReplySchema,
  },
  deliverResult: {
    method: 'POST',
    roles: NODES,
    faces: NODE_FACE,
    path: '/nodes/:id/results',
    summary: 'A node delivers a session: an envelope of SessionSummary, `trajectory`, `completions` and `artifacts`.',
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
      'A node hands in what is left of an attempt that was cut off, in the same envelope. It changes no session.',
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
    summary: 'Drain a node: it gets no more sessions and is forgotten once it is gone.',
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
    summary: 'Register an engine at every node; `wait` holds the reply until they have tried it.',
    query: engineWait.extend({ replace: flag.describe('it takes the place of another that has its id') }),
    body: engineSpecSchema,
    reply: engineChangeSchema,
  },
  clearEngines: {
    method: 'DELETE',
    roles: TRAINERS,
    path: '/engines',
    summary: 'Remove all engines. No call reaches one of them on the nodes that the reply lists as `done`.',
    query: engineWait,
    reply: engineChangeSchema,
  },
  removeEngine: {
    method: 'DELETE',
    roles: TRAINERS,
    path: '/engines/:id',
    summary: 'Remove one engine. Calls that it is answering end by themselves.',
    query: engineWait,
    reply: engineChangeSchema,
  },
  pauseEngines: {
    method: 'POST',
    roles: TRAINERS,
    path: '/engines/pause',
    summary: 'Before a weight update: new calls wait or are refused, those under way are kept or broken off.',
    query: engineWait,
    body: pauseRequestSchema,
    reply: engineChangeSchema,
  },
  resumeEngines: {
    method: 'POST',
    roles: TRAINERS,
    path: '/engines/resume',
    summary: 'After it: held calls go on, and replies that were broken off are continued.',
    query: engineWait,
    reply: engineChangeSchema,
  },
  setEngineVersion: {
    method: 'POST',
    roles: TRAINERS,
    path: '/engines/version',
    summary: 'Name the weights that engines sample with from now on, where they do not tell themselves.',
    query: engineWait,
    body: versionRequestSchema,
    reply: engineChangeSchema,
  },
  addLlmServer: {
    method: 'POST',
    roles: TRAINERS,
    path: '/add_llm_server',
    summary: "ProRL Agent's name for registering a vLLM server.",
    body: addServerSchema,
    reply: serverReply.extend({ address: z.string() }),
  },
  clearLlmServer: {
    method: 'POST',
    roles: TRAINERS,
    path: '/clear_llm_server',
    summary: "ProRL Agent's name for removing all engines.",
    reply: serverReply,
  },
  events: {
    method: 'GET',
    roles: READERS,
    path: '/events',
    summary: 'Server-sent events: what is created, moves and finishes from now on.',
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
    summary: 'The store answers and requests are taken.',
    reply: statusReply,
    open: true,
  },
  openapi: {
    method: 'GET',
    roles: READERS,
    path: '/openapi.json',
    summary: 'This description.',
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
