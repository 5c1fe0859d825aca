import { z } from 'zod';
import type { RouteSpec } from '../http/api.ts';
import { prorlCancelSchema, prorlProcessSchema, prorlResultSchema } from './schema.ts';

const TRAINERS = ['trainer'] as const;
const GUARDED = {} as const;
const statusReply = z.object({ status: z.string() });

/**
 * The calls of ProRL Agent's server (`scripts/start_server.py` at 40c1d8a of NVIDIA-NeMo/ProRL-Agent-Server). `/add_llm_server` and
 * `/clear_llm_server` are not in this table, because they are part of floe's own API. All calls need a token, which may be the password of the
 * URL.
 */
export const PRORL_API = {
  prorlStart: {
    method: 'POST',
    path: '/start',
    summary: 'Accept jobs.',
    roles: TRAINERS,
    compatible: GUARDED,
    reply: statusReply,
  },
  prorlStop: {
    method: 'POST',
    path: '/stop',
    summary: 'Accept no more jobs, and cancel those whose clients wait.',
    roles: TRAINERS,
    compatible: GUARDED,
    reply: statusReply,
  },
  prorlStatus: {
    method: 'GET',
    path: '/status',
    summary: 'The number of jobs and sessions in each phase.',
    roles: ['viewer', 'trainer'],
    compatible: GUARDED,
    reply: z.looseObject({ status: z.string(), pending_jobs: z.int() }),
  },
  prorlProcess: {
    method: 'POST',
    path: '/process',
    summary: 'Run one instance, and reply with its messages and reward when it has ended.',
    roles: TRAINERS,
    compatible: GUARDED,
    body: prorlProcessSchema,
    reply: prorlResultSchema,
  },
  prorlCancel: {
    method: 'POST',
    path: '/cancel',
    summary: 'Cancel a job.',
    roles: TRAINERS,
    compatible: GUARDED,
    body: prorlCancelSchema,
    reply: statusReply,
  },
} as const satisfies Record<string, RouteSpec>;
