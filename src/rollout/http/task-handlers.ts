import { Readable } from 'node:stream';
import { FloeError } from '../../core/errors.ts';
import type { TaskStatus } from '../../schema/index.ts';
import type { ResultWithSummary } from '../../store/index.ts';
import { cancelTask } from '../cancellations.ts';
import { change, type RolloutContext } from '../context.ts';
import { jsonListBytes, resultLines, resultListBytes } from '../result-bytes.ts';
import { submitTask } from '../tasks.ts';
import {
  cancelReply,
  type LoadedTask,
  loadTask,
  rolloutStatus,
  taskResults,
  taskSummary,
  unknownCancelled,
} from '../views.ts';
import type { Api } from './api.ts';
import type { Call, Handlers } from './handler.ts';

/** What trainers call. */
export function taskHandlers(
  context: RolloutContext,
): Handlers<'submitTask' | 'getTask' | 'cancelTask' | 'listTasks' | 'getResults' | 'getStatus'> {
  return {
    submitTask: ({ body }) => submitTask(context, body),
    getTask: async ({ id, query, reply }) => {
      const loaded = await loadTask(context, id);
      const before = `${JSON.stringify(loaded.head).slice(0, -1)},"results":`;
      const rows = query.results === 'full' ? collecting(context, loaded) : taskResults(context, loaded);
      reply.type('application/json');
      return streamOf(
        query.results === 'full'
          ? resultListBytes(before, rows, '}', context.blobs)
          : jsonListBytes(before, summariesOf(rows), '}'),
      );
    },
    cancelTask: async ({ id, query }): Promise<TaskStatus> => {
      const task = await cancelTask(context, id, query.register_if_missing);
      return task === null ? unknownCancelled(id) : cancelReply(context, id);
    },
    listTasks: async ({ query }) => {
      const rows = await context.store.read((tables) =>
        tables.tasks.list({ status: query.status ?? null, limit: query.limit }),
      );
      return { tasks: rows.map(taskSummary) };
    },
    getResults: (call) => resultsPage(context, call),
    getStatus: () => rolloutStatus(context),
  };
}

async function resultsPage(context: RolloutContext, call: Call<Api['getResults']>): Promise<Readable> {
  const { after, limit, wait } = call.query;
  const found = await context.wakeups.poll('results', wait * 1000, call.gone, () =>
    context.store.transaction(async (tables) => {
      const rows = await tables.results.page(after, limit, null);
      if (rows.length > 0) return rows;
      const newest = await tables.results.newestCursor();
      if (after > newest) throw cursorAhead(after, newest);
      return undefined;
    }),
  );
  const rows = found ?? [];
  const next = rows.at(-1)?.cursor ?? after;
  const lines = (call.request.headers.accept ?? '').includes('application/x-ndjson');
  call.reply.header('x-next-cursor', String(next)).type(lines ? 'application/x-ndjson' : 'application/json');
  return streamOf(
    lines
      ? resultLines(rows, context.blobs)
      : resultListBytes('{"results":', rows, `,"next_cursor":${next}}`, context.blobs),
  );
}

/** A cursor that this store never gave out belongs to another one; waiting for it would wait for ever. */
function cursorAhead(after: number, newest: number): FloeError {
  const message = `is ${after}, but the newest cursor of this server is ${newest}`;
  return new FloeError('schema_violation', `query: after: ${message}`, { issues: [{ path: 'after', message }] });
}

/** Once a reader has had all the results of a task that has ended, they count as collected. */
async function* collecting(context: RolloutContext, loaded: LoadedTask): AsyncGenerator<ResultWithSummary> {
  yield* taskResults(context, loaded);
  const { task_id: taskId, total_sessions: total, completed_sessions: ended } = loaded.head;
  if (ended < total) return;
  await change(context, async (tables, effects) => {
    await tables.results.collectTask(taskId);
    effects.topics.add('queue');
  });
}

async function* summariesOf(rows: AsyncIterable<ResultWithSummary>): AsyncGenerator<string> {
  for await (const row of rows) yield row.summary;
}

function streamOf(bytes: AsyncIterable<Buffer>): Readable {
  return Readable.from(bytes, { objectMode: false });
}
