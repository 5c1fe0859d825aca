import {
  groupFactsPageSchema,
  histogramFieldSchema,
  idSchema,
  liveSessionsSchema,
  measureKindSchema,
  sessionFactsPageSchema,
  sessionGroupingSchema,
  sessionHistogramSchema,
  sessionMeasuresReplySchema,
  sessionTotalsReplySchema,
} from '@floe-rl/core/schema';
import { z } from 'zod';
import { count } from './query-parameters.ts';
import { filteredQuery, sessionOrder } from './session-filter.ts';

const READERS = ['viewer', 'trainer'] as const;

/** Maximum number of fields that one request for sums can group sessions by. */
const MAX_GROUPINGS = 3;
/** Maximum number of intervals of a histogram. */
const MAX_BINS = 200;

const after = z.string().max(512).optional().describe('`next` of the page before; default: the first page');

const groupings = z
  .string()
  .transform((text) => text.split(','))
  .pipe(
    z
      .array(sessionGroupingSchema)
      .max(MAX_GROUPINGS)
      .refine((fields) => new Set(fields).size === fields.length, 'must have different fields'),
  );

/** The routes that list and sum ended sessions. They are a part of the API table. */
export const SESSION_LIST_API = {
  listEndedSessions: {
    method: 'GET',
    roles: READERS,
    path: '/sessions',
    summary:
      'Ended sessions, filtered, ordered and in pages. Lists of values are separated by commas; `none` is no value.',
    query: filteredQuery({
      order: sessionOrder.default('newest').describe('`-` orders from the greatest to the least value'),
      limit: count(1, 1000, 100),
      after,
    }),
    reply: sessionFactsPageSchema,
  },
  sumSessions: {
    method: 'GET',
    roles: READERS,
    path: '/sessions/totals',
    summary: 'Sums and means over ended sessions, one for each combination of the values of `by`.',
    query: filteredQuery({
      by: groupings
        .optional()
        .describe(
          `fields of which each combination of values gets its sums, separated by commas, at most ${MAX_GROUPINGS}; default: one sum of all`,
        ),
    }),
    reply: sessionTotalsReplySchema,
  },
  measureSessions: {
    method: 'GET',
    roles: READERS,
    path: '/sessions/measures',
    summary:
      'What ended sessions did, by name: links between calls, drift, rendered prompts, excluded tokens, tools, hints, parts of rewards.',
    query: filteredQuery({
      of: z
        .string()
        .transform((text) => text.split(','))
        .pipe(z.array(measureKindSchema))
        .describe('kinds of measures, separated by commas'),
      by: groupings.optional().describe(`as for the sums, at most ${MAX_GROUPINGS}`),
    }),
    reply: sessionMeasuresReplySchema,
  },
  sessionHistogram: {
    method: 'GET',
    roles: READERS,
    path: '/sessions/histogram',
    summary: 'How the rewards, turns, tokens or durations of ended sessions are distributed.',
    query: filteredQuery({ of: histogramFieldSchema, bins: count(1, MAX_BINS, 40) }),
    reply: sessionHistogramSchema,
  },
  liveSessions: {
    method: 'GET',
    roles: READERS,
    path: '/sessions/live',
    summary: 'Sessions that nodes run now. `GET /events` has their changes.',
    query: z.strictObject({
      task: idSchema.optional().describe('only those of this task'),
      limit: count(1, 1000, 200),
    }),
    reply: liveSessionsSchema,
  },
  listGroups: {
    method: 'GET',
    roles: READERS,
    path: '/groups',
    summary: 'The tasks of ended sessions with the rewards of their group, newest first, filtered and in pages.',
    query: filteredQuery({ limit: count(1, 1000, 100), after }),
    reply: groupFactsPageSchema,
  },
} as const;
