import type { FloeClient, SessionFilter } from '@floe-rl/client';
import { FloeError } from '@floe-rl/core';
import { expect, it } from 'vitest';
import { ServerSessions } from '../../src/session-sets/server-sessions.ts';
import { setRow } from './sets.ts';

const ENDED_MS = 1_000;
const missing = (): Promise<never> => Promise.reject(new FloeError('not_found', 'is not known'));

/** Returns a client of a server with four sessions of one task: removed, without a trajectory, unreadable and whole. */
function clientOf(filters: SessionFilter[]): FloeClient {
  const ids = ['removed', 'empty', 'unreadable', 'whole'];
  const { trajectory, origin: _, ...summary } = setRow();
  const client = {
    async *endedSessions(filter: SessionFilter) {
      filters.push(filter);
      for (const [index, id] of ids.entries()) {
        yield { session_id: id, task_id: 'task', sample_index: ids.length - index, ended_ms: ENDED_MS };
      }
    },
    async *groups(filter: SessionFilter) {
      filters.push(filter);
      yield { task_id: 'task' };
    },
    session: async (id: string) => (id === 'removed' ? missing() : { summary: { ...summary, session_id: id } }),
    trajectory: async (id: string) => {
      if (id === 'empty') return missing();
      if (id === 'unreadable') throw new FloeError('corrupt_record', 'fails its checksum');
      return trajectory;
    },
  };
  return client as unknown as FloeClient;
}

it('an export skips and counts sessions that are gone or unreadable, and reads the others in the order of their samples', async () => {
  const filters: SessionFilter[] = [];
  const sessions = new ServerSessions(clientOf(filters), { source: 'x' }, new AbortController().signal);
  const rows = [];
  for await (const row of sessions.rows()) rows.push(row);
  expect(rows.map(({ session_id }) => session_id)).toEqual(['whole', 'empty']);
  expect(rows.map(({ trajectory }) => trajectory === null)).toEqual([false, true]);
  expect(sessions.skipped()).toEqual({ removed: 1, corrupt_record: 1 });
  // Sessions that end during the export match no later request.
  expect(filters.slice(1)).toEqual([
    { source: 'x', until: new Date(ENDED_MS + 1) },
    { source: 'x', until: new Date(ENDED_MS + 1), task: 'task' },
  ]);
});

it('an export fails when the server cannot be reached, instead of leaving sessions out', async () => {
  const client = clientOf([]);
  client.trajectory = () => Promise.reject(new FloeError('peer_unreachable', 'is not running'));
  const rows = new ServerSessions(client, {}, new AbortController().signal).rows();
  await expect(rows.next()).rejects.toMatchObject({ code: 'peer_unreachable' });
});
