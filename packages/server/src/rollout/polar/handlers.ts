import { Readable } from 'node:stream';
import type { TaskRow } from '../../store/index.ts';
import type { RolloutContext } from '../context.ts';
import { type CompatibleApi, compatibleApi } from '../http/compatible-api.ts';
import { streamEvents } from '../http/event-stream.ts';
import { drainNode, readNode } from '../nodes/nodes.ts';
import { shownState } from '../tasks/views.ts';
import { POLAR_API } from './api.ts';
import { PolarEvents } from './events.ts';
import { polarNode, polarNodes, polarServiceStatus, polarSessions, polarTasks } from './lists.ts';
import { translateTask } from './request.ts';
import { taskBytes } from './results.ts';
import { cancelRun, readRun, submitRun } from './runs.ts';

/** Paths below which the Polar API is served, for each value of the setting `polar`. An empty text means the root. */
const PREFIXES = { off: [], prefix: ['/polar'], root: ['/polar', ''] } as const;

/** Creates Polar's API over this service. */
export function polarApi(context: RolloutContext): CompatibleApi {
  const events = new PolarEvents(context);
  const frames = { first: () => events.frame('hello'), heartbeat: () => events.frame('ping') };
  return compatibleApi(
    POLAR_API,
    {
      polarSubmit: async ({ body }) => {
        const { task, warnings } = translateTask(body);
        await submitRun(context, body.task_id, task);
        return { task_id: body.task_id, status: 'running', warnings };
      },
      polarTask: async ({ id, reply }) => {
        const task = await readRun(context, id);
        reply.type('application/json');
        return Readable.from(taskBytes(context, task, id, headOf(task)), { objectMode: false });
      },
      polarCancel: async ({ id, query, reply }) => {
        const task = await cancelRun(context, id, query.register_if_missing);
        if (task === null) return unsubmitted(id);
        reply.type('application/json');
        return Readable.from(taskBytes(context, task, id, headOf(task)), { objectMode: false });
      },
      polarStatus: () => polarServiceStatus(context),
      polarTasks: async ({ query }) => ({ tasks: await polarTasks(context, query) }),
      polarSessions: async ({ id }) => ({
        task_id: id,
        sessions: await polarSessions(context, await readRun(context, id), id),
      }),
      polarNodes: () => polarNodes(context),
      polarNode: async ({ id }) => polarNode(context, await readNode(context, id)),
      polarDrain: async ({ id }) => polarNode(context, await drainNode(context, id)),
      polarEvents: ({ reply }) => streamEvents(context, events.feed, reply, frames),
      polarHealth: async () => ({ status: 'ok', nodes: (await polarNodes(context)).length }),
    },
    PREFIXES[context.config.polar],
  );
}

function headOf(task: TaskRow): Record<string, unknown> {
  const { total_sessions, completed_sessions } = task;
  return { status: shownState(task), total_sessions, completed_sessions };
}

/** Returns the state of a task that was cancelled before it was submitted. */
function unsubmitted(polarId: string): object {
  return {
    task_id: polarId,
    status: 'cancelled',
    total_sessions: 0,
    completed_sessions: 0,
    results: [],
    result_paths: [],
  };
}
