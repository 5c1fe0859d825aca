import { z } from 'zod';
import type { RouteSpec } from '../http/api.ts';
import { count, flag } from '../http/query-parameters.ts';
import {
  polarNodeSchema,
  polarServiceStatusSchema,
  polarSessionRowSchema,
  polarSubmitReplySchema,
  polarTaskRequestSchema,
  polarTaskRowSchema,
  polarTaskStatusSchema,
} from './schema.ts';

const READERS = ['viewer', 'trainer'] as const;
const TRAINERS = ['trainer'] as const;
/** Rules of a call that changes something. They are empty, so the call needs a token. */
const GUARDED = {} as const;
/** Rules of a call that changes nothing. It needs no token, because Polar requires none for it. */
const OPEN = { anonymous: true } as const;

/**
 * The calls of Polar's rollout server (`src/polar/rollout/server.py` at 01bc72d of NVIDIA-NeMo/ProRL-Agent-Server) with Polar's paths,
 * parameters and replies. The calls of Polar's gateway nodes are missing, because floe's nodes use floe's own protocol.
 */
export const POLAR_API = {
  polarSubmit: {
    method: 'POST',
    path: '/rollout/task/submit',
    summary: 'Submit a task. An id whose task has ended may be used again.',
    roles: TRAINERS,
    compatible: GUARDED,
    body: polarTaskRequestSchema,
    reply: polarSubmitReplySchema,
  },
  polarTask: {
    method: 'GET',
    path: '/rollout/task/:id',
    summary: 'The state of a task, with all its results and their trajectories.',
    roles: READERS,
    compatible: OPEN,
    reply: polarTaskStatusSchema,
  },
  polarCancel: {
    method: 'DELETE',
    path: '/rollout/task/:id',
    summary: 'Cancel a task. With `register_if_missing`, an unknown id is refused if it is submitted later.',
    roles: TRAINERS,
    compatible: GUARDED,
    query: z.object({ register_if_missing: flag }),
    reply: polarTaskStatusSchema,
  },
  polarStatus: {
    method: 'GET',
    path: '/rollout/status',
    summary: 'The state of the service.',
    roles: READERS,
    compatible: OPEN,
    reply: polarServiceStatusSchema,
  },
  polarTasks: {
    method: 'GET',
    path: '/tasks',
    summary: 'The tasks, the most recently changed first.',
    roles: READERS,
    compatible: OPEN,
    query: z.object({
      status: z.string().optional(),
      harness: z.string().optional(),
      since: z
        .string()
        .regex(/^\d{1,12}(\.\d{1,9})?$/, 'must be a number of seconds since 1970')
        .transform(Number)
        .optional(),
      limit: count(1, 1000, 200),
    }),
    reply: z.object({ tasks: z.array(polarTaskRowSchema) }),
  },
  polarSessions: {
    method: 'GET',
    path: '/tasks/:id/sessions',
    summary: 'The sessions of a task, ordered by sample index.',
    roles: READERS,
    compatible: OPEN,
    reply: z.object({ task_id: z.string(), sessions: z.array(polarSessionRowSchema) }),
  },
  polarNodes: {
    method: 'GET',
    path: '/nodes',
    summary: 'All nodes.',
    roles: READERS,
    compatible: OPEN,
    reply: z.array(polarNodeSchema),
  },
  polarNode: {
    method: 'GET',
    path: '/nodes/:id',
    summary: 'One node.',
    roles: READERS,
    compatible: OPEN,
    reply: polarNodeSchema,
  },
  polarDrain: {
    method: 'DELETE',
    path: '/nodes/:id',
    summary: 'Drain a node.',
    roles: ['node'],
    compatible: GUARDED,
    reply: polarNodeSchema,
  },
  polarEvents: {
    method: 'GET',
    path: '/events',
    summary: 'Server-sent events about tasks and sessions from now on.',
    roles: READERS,
    compatible: OPEN,
    reply: z.unknown(),
    media: ['text/event-stream'],
  },
  polarHealth: {
    method: 'GET',
    path: '/health',
    summary: 'The process is alive; the number of nodes.',
    roles: READERS,
    compatible: OPEN,
    reply: z.object({ status: z.literal('ok'), nodes: z.int() }),
  },
} as const satisfies Record<string, RouteSpec>;
