import { Readable } from 'node:stream';
import type { RolloutContext } from '../context.ts';
import { cancelSession } from '../sessions/cancel.ts';
import { LiveReplies, readLiveSessions } from '../sessions/live.ts';
import { jsonListBytes } from '../sessions/result-json.ts';
import { checkTaskExists, readAttempts, readPart, readSession, sessionViewTexts } from '../sessions/views.ts';
import type { Handlers } from './handler.ts';

/** Creates the handlers of the routes about single sessions. These routes can be called while a session runs and after it has ended. */
export function sessionHandlers(
  context: RolloutContext,
): Handlers<
  | 'listSessions'
  | 'liveSessions'
  | 'getSession'
  | 'cancelSession'
  | 'listAttempts'
  | 'getTrajectory'
  | 'getCompletions'
  | 'getArtifacts'
> {
  const replies = new LiveReplies(context.events);
  return {
    liveSessions: ({ query }) => readLiveSessions(context, replies, query.task ?? null, query.limit),
    listSessions: async ({ id, reply }) => {
      await checkTaskExists(context, id);
      reply.type('application/json');
      const bytes = jsonListBytes(`{"task_id":${JSON.stringify(id)},"sessions":`, sessionViewTexts(context, id), '}');
      return Readable.from(bytes, { objectMode: false });
    },
    getSession: ({ id }) => readSession(context, id),
    cancelSession: ({ id }) => cancelSession(context, id),
    listAttempts: async ({ id }) => ({ session_id: id, attempts: await readAttempts(context, id) }),
    getTrajectory: async ({ id, query, reply }) => {
      const bytes = await readPart(context, id, 'trajectory', query.attempt);
      reply.type('application/json');
      return bytes;
    },
    getCompletions: async ({ id, query, reply }) => {
      const bytes = await readPart(context, id, 'completions', query.attempt);
      // Completions are stored either as JSON, which begins with a brace or a bracket, or in a binary codec, which begins with another
      // byte.
      const isJson = bytes[0] === 0x7b || bytes[0] === 0x5b;
      reply.type(isJson ? 'application/json' : 'application/octet-stream');
      return bytes;
    },
    getArtifacts: async ({ id, query, reply }) => {
      const bytes = await readPart(context, id, 'artifacts', query.attempt);
      // The session id is inserted into the header unchanged, because ids contain no characters that would need escaping.
      reply.type('application/gzip').header('content-disposition', `attachment; filename="${id}.tar.gz"`);
      return bytes;
    },
  };
}
