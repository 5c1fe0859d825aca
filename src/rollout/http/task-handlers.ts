import { Readable } from 'node:stream';
import { FloeError } from '../../core/errors.ts';
import type { TaskStatus } from '../../schema/index.ts';
import type { RolloutContext } from '../context.ts';
import { resultLines, resultListBytes } from '../result-bytes.ts';
import { cancelTask, submitTask } from '../tasks.ts';
import { loadTask, rolloutStatus, taskStatus, taskSummary, unknownCancelled } from '../views.ts';
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
      if (query.results === 'summary') return taskStatus(loaded);
      const { results: _, ...head } = taskStatus({ ...loaded, results: [] });
      reply.type('application/json');
      return streamOf(
        resultListBytes(`${JSON.stringify(head).slice(0, -1)},"results":`, loaded.results, '}', context.blobs),
      );
    },
    cancelTask: async ({ id, query }): Promise<TaskStatus> => {
      const task = await cancelTask(context, id, query.register_if_missing);
      if (task === null) {
        return unknownCancelled(id);
      }
      return taskStatus(await loadTask(context, id));
    },
    listTasks: async ({ query }) => {
      const rows = await context.store.transaction((tables) =>
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

function streamOf(bytes: AsyncIterable<Buffer>): Readable {
  return Readable.from(bytes, { objectMode: false });
}
