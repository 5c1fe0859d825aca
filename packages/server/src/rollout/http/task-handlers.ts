import { Readable } from 'node:stream';
import { FloeError, formatTraceparent, parseTraceparent } from '@floe-rl/core';
import type { TaskStatus } from '@floe-rl/core/schema';
import type { FastifyRequest } from 'fastify';
import type { ResultWithSummary } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { cancelTask } from '../sessions/cancel.ts';
import { jsonListBytes, resultLines, resultListBytes } from '../sessions/result-json.ts';
import { readResults } from '../sessions/results.ts';
import { StatusBoard } from '../status/status.ts';
import { repeatTask, submitTask } from '../tasks/submit.ts';
import {
  cancelledBeforeSubmit,
  cancelReply,
  type LoadedTask,
  loadTask,
  taskResults,
  taskSummary,
  waitForEnd,
} from '../tasks/views.ts';
import { runTransaction } from '../transaction.ts';
import type { Api } from './api.ts';
import type { Call, Handlers } from './handler.ts';

/** Creates the handlers of the routes for trainers that submit and cancel tasks and read results. */
export function taskHandlers(
  context: RolloutContext,
): Handlers<'submitTask' | 'repeatTask' | 'getTask' | 'cancelTask' | 'listTasks' | 'getResults' | 'getStatus'> {
  const board = new StatusBoard(context);
  return {
    submitTask: ({ body, request }) =>
      submitTask(context, { ...body, traceparent: body.traceparent ?? traceparentOf(request) }),
    repeatTask: ({ id, request }) => repeatTask(context, id, traceparentOf(request)),
    getTask: async ({ id, query, role, reply, disconnected }) => {
      if (query.wait > 0) await waitForEnd(context, id, query.wait * 1000, disconnected);
      const loaded = await loadTask(context, id);
      const before = `${JSON.stringify(loaded.head).slice(0, -1)},"results":`;
      const collects = role !== 'viewer';
      const rows = taskResults(context, loaded.head.task_id, loaded.upToCursor);
      reply.type('application/json');
      if (query.results !== 'full') return streamOf(jsonListBytes(before, summariesOf(rows), '}'));
      const bytes = resultListBytes(before, rows, '}', context.trajectories);
      return streamOf(collects ? thenCollect(context, loaded, bytes) : bytes);
    },
    cancelTask: async ({ id, query }): Promise<TaskStatus> => {
      const task = await cancelTask(context, id, query.register_if_missing);
      return task === null ? cancelledBeforeSubmit(id) : cancelReply(context, id);
    },
    listTasks: async ({ query }) => {
      const rows = await context.store.read((tables) =>
        tables.tasks.list({ status: query.status ?? null, limit: query.limit }),
      );
      return { tasks: rows.map(taskSummary) };
    },
    getResults: (call) => resultsPage(context, call),
    getStatus: () => board.status(),
  };
}

/** Returns the trace context of a request; `null` when the header is missing or malformed, so that the trace begins at this server. */
function traceparentOf({ headers }: FastifyRequest): string | null {
  const { traceparent } = headers;
  const context = typeof traceparent === 'string' ? parseTraceparent(traceparent) : null;
  return context === null ? null : formatTraceparent(context);
}

async function resultsPage(context: RolloutContext, call: Call<Api['getResults']>): Promise<Readable> {
  const { wait, ...query } = call.query;
  const mayCollect = call.role !== 'viewer';
  if (!mayCollect && query.consumer !== undefined) {
    throw new FloeError(
      'forbidden',
      'a viewer cannot use a consumer, because reading with one marks results as collected',
      { role: call.role },
    );
  }
  const peek = query.peek || !mayCollect;
  const { rows, next } = await readResults(context, {
    ...query,
    peek,
    waitMs: wait * 1000,
    disconnected: call.disconnected,
  });
  const wantsLines = call.request.headers.accept?.includes('application/x-ndjson') === true;
  call.reply.header('x-next-cursor', String(next)).type(wantsLines ? 'application/x-ndjson' : 'application/json');
  return streamOf(
    wantsLines
      ? resultLines(rows, context.trajectories)
      : resultListBytes('{"results":', rows, `,"next_cursor":${next}}`, context.trajectories),
  );
}

/** Yields the reply with the results of a task. They count as collected once the client has received all of them and the task has ended. */
async function* thenCollect(
  context: RolloutContext,
  { head }: LoadedTask,
  bytes: AsyncIterable<Buffer>,
): AsyncGenerator<Buffer> {
  yield* bytes;
  const { task_id: taskId, total_sessions: total, completed_sessions: ended } = head;
  if (ended < total) return;
  await runTransaction(context, async (transaction) => {
    await transaction.tables.results.collectTasks([taskId]);
    transaction.wake('queue');
  });
}

async function* summariesOf(rows: AsyncIterable<ResultWithSummary>): AsyncGenerator<string> {
  for await (const row of rows) yield row.summary;
}

function streamOf(bytes: AsyncIterable<Buffer>): Readable {
  return Readable.from(bytes, { objectMode: false });
}
