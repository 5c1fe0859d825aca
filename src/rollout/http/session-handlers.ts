import { Readable } from 'node:stream';
import type { RolloutContext } from '../context.ts';
import { cancelOneSession } from '../sessions/cancel.ts';
import { jsonListBytes } from '../sessions/result-json.ts';
import { attemptsOf, knownTask, oneSession, sessionBlob, sessionTexts } from '../sessions/views.ts';
import type { Handlers } from './handler.ts';

/** Looking into one session, while it runs and after. */
export function sessionHandlers(
  context: RolloutContext,
): Handlers<
  'listSessions' | 'getSession' | 'cancelSession' | 'listAttempts' | 'getTrajectory' | 'getCompletions' | 'getArtifacts'
> {
  return {
    listSessions: async ({ id, reply }) => {
      await knownTask(context, id);
      reply.type('application/json');
      const bytes = jsonListBytes(`{"task_id":${JSON.stringify(id)},"sessions":`, sessionTexts(context, id), '}');
      return Readable.from(bytes, { objectMode: false });
    },
    getSession: ({ id }) => oneSession(context, id),
    cancelSession: ({ id }) => cancelOneSession(context, id),
    listAttempts: async ({ id }) => ({ session_id: id, attempts: await attemptsOf(context, id) }),
    getTrajectory: async ({ id, query, reply }) => {
      const bytes = await sessionBlob(context, id, 'trajectory', query.attempt);
      reply.type('application/json');
      return bytes;
    },
    getCompletions: async ({ id, query, reply }) => {
      const bytes = await sessionBlob(context, id, 'completions', query.attempt);
      const json = bytes[0] === 0x7b || bytes[0] === 0x5b;
      reply.type(json ? 'application/json' : 'application/octet-stream');
      return bytes;
    },
    getArtifacts: async ({ id, query, reply }) => {
      const bytes = await sessionBlob(context, id, 'artifacts', query.attempt);
      // Ids are held to an alphabet that needs no quoting.
      reply.type('application/gzip').header('content-disposition', `attachment; filename="${id}.tar.gz"`);
      return bytes;
    },
  };
}
