import type { FloeClient } from '@floe-rl/client';
import type { SessionResult, TaskRequestInput } from '@floe-rl/core/schema';

/** Runs tasks, and resolves with the results of all their sessions, in the order of the tasks. */
export async function resultsOf(client: FloeClient, tasks: readonly TaskRequestInput[]): Promise<SessionResult[]> {
  const expected: string[] = [];
  for (const task of tasks) expected.push(...(await client.submit(task)).session_ids);
  const missing = new Set(expected);
  const found = new Map<string, SessionResult>();
  for await (const result of client.results()) {
    if (missing.delete(result.session_id)) found.set(result.session_id, result);
    if (missing.size === 0) break;
  }
  return expected.flatMap((id) => found.get(id) ?? []);
}
