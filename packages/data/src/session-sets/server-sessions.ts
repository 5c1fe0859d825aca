import type { FloeClient, SessionFilter } from '@floe-rl/client';
import { FloeError } from '@floe-rl/core';
import type { SessionFacts, Trajectory } from '@floe-rl/core/schema';
import { originOf, type SetRow } from './set-row.ts';

/** Number of sessions that are requested in advance while an earlier session is handled. Each may have some tens of megabytes. */
const AHEAD = 4;
/** Number of tasks, or of sessions of a task, in one reply of the server. */
const PAGE_SIZE = 1000;

/** Reads the ended sessions of a server that match a filter, task by task. Reading them does not count as collecting results. */
export class ServerSessions {
  private readonly client: FloeClient;
  private readonly filter: SessionFilter;
  private readonly signal: AbortSignal;
  private readonly missing: Record<string, number> = {};

  constructor(client: FloeClient, filter: SessionFilter, signal: AbortSignal) {
    this.client = client;
    this.filter = filter;
    this.signal = signal;
  }

  /** Returns the number of sessions that matched and could not be read, by reason. */
  skipped(): Readonly<Record<string, number>> {
    return this.missing;
  }

  /**
   * Yields the sessions that have ended when the first session is requested. The sessions of one task are in the order of their samples. A
   * session that the server removes meanwhile, or whose data it cannot read, is skipped and counted.
   */
  async *rows(): AsyncGenerator<SetRow> {
    const pending: Promise<SetRow | null>[] = [];
    try {
      for await (const facts of this.facts()) {
        const row = this.read(facts);
        // The row is awaited later, and its failure is handled there.
        row.catch(() => {});
        pending.push(row);
        if (pending.length > AHEAD) yield* await this.next(pending);
      }
      while (pending.length > 0) yield* await this.next(pending);
    } finally {
      await Promise.allSettled(pending);
    }
  }

  private async next(pending: Promise<SetRow | null>[]): Promise<SetRow[]> {
    const row = await pending.shift();
    return row === null || row === undefined ? [] : [row];
  }

  private async *facts(): AsyncGenerator<SessionFacts> {
    const { client, signal } = this;
    const newest = await client.endedSessions(this.filter, { pageSize: 1, signal }).next();
    if (newest.done === true) return;
    // Sessions that end later could move their tasks to pages that have already been read.
    const filter = { ...this.filter, until: new Date(newest.value.ended_ms + 1) };
    for await (const { task_id } of client.groups(filter, { pageSize: PAGE_SIZE, signal })) {
      const sessions: SessionFacts[] = [];
      const ofTask = { ...filter, task: task_id };
      for await (const facts of client.endedSessions(ofTask, { pageSize: PAGE_SIZE, signal })) sessions.push(facts);
      yield* sessions.sort((a, b) => a.sample_index - b.sample_index);
    }
  }

  private async read(facts: SessionFacts): Promise<SetRow | null> {
    const id = facts.session_id;
    try {
      const { summary } = await this.client.session(id, this.signal);
      if (summary === null) return this.skip('not_ended');
      return { ...summary, trajectory: await this.trajectory(id), origin: originOf(facts) };
    } catch (thrown) {
      if (FloeError.is(thrown) && thrown.code === 'not_found') return this.skip('removed');
      if (FloeError.is(thrown) && thrown.code === 'corrupt_record') return this.skip('corrupt_record');
      throw thrown;
    }
  }

  /** Returns `null` for a session that ended without a trajectory. Throws `not_found` when the session itself has been removed. */
  private async trajectory(id: string): Promise<Trajectory | null> {
    try {
      return await this.client.trajectory(id, { signal: this.signal });
    } catch (thrown) {
      if (!FloeError.is(thrown) || thrown.code !== 'not_found') throw thrown;
      await this.client.session(id, this.signal);
      return null;
    }
  }

  private skip(reason: string): null {
    this.missing[reason] = (this.missing[reason] ?? 0) + 1;
    return null;
  }
}
