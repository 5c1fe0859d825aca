import type { RolloutContext } from '../context.ts';
import { cancelOneSession, oneSession, sessionBlob, sessionsOfTask } from '../views.ts';
import type { Handlers } from './handler.ts';

/** Looking into one session, while it runs and after. */
export function sessionHandlers(
  context: RolloutContext,
): Handlers<'listSessions' | 'getSession' | 'cancelSession' | 'getTrajectory' | 'getCompletions' | 'getArtifacts'> {
  return {
    listSessions: async ({ id }) => ({ task_id: id, sessions: await sessionsOfTask(context, id) }),
    getSession: ({ id }) => oneSession(context, id),
    cancelSession: ({ id }) => cancelOneSession(context, id),
    getTrajectory: async ({ id, reply }) => {
      const bytes = await sessionBlob(context, id, 'trajectory');
      reply.type('application/json');
      return bytes;
    },
    getCompletions: async ({ id, reply }) => {
      const bytes = await sessionBlob(context, id, 'completions');
      const json = bytes[0] === 0x7b || bytes[0] === 0x5b;
      reply.type(json ? 'application/json' : 'application/octet-stream');
      return bytes;
    },
    getArtifacts: async ({ id, reply }) => {
      const bytes = await sessionBlob(context, id, 'artifacts');
      // Ids are held to an alphabet that needs no quoting.
      reply.type('application/gzip').header('content-disposition', `attachment; filename="${id}.tar.gz"`);
      return bytes;
    },
  };
}
