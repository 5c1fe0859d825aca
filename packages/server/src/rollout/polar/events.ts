import { isoNow } from '@floe-rl/core';
import type { RolloutEvent } from '@floe-rl/core/schema';
import { LRUCache } from 'lru-cache';
import type { RolloutContext } from '../context.ts';
import { EventFeed } from '../events.ts';
import { requestOf } from '../tasks/groups.ts';
import { polarState } from './lists.ts';

/** Number of tasks whose Polar id is kept in memory. Other ids are read from the store when an event names their task. */
const MAX_KNOWN_TASKS = 10_000;

/** The properties of a task that its events contain; `null` for a task that was not submitted through the Polar API. */
type ShownTask = { readonly polarId: string; readonly harness: string; readonly model: string } | null;

/**
 * The events of tasks that were submitted through the Polar API, in Polar's form (`src/polar/platform/events.py` at c04b814 of the fork
 * jxliu1216/ProRL-Agent-Server). Events are translated one after the other, because the store must be asked for the task's Polar id.
 */
export class PolarEvents {
  readonly feed = new EventFeed();
  private readonly context: RolloutContext;
  private readonly tasks = new LRUCache<string, { readonly shown: ShownTask }>({ max: MAX_KNOWN_TASKS });
  private turn: Promise<void> = Promise.resolve();

  constructor(context: RolloutContext) {
    this.context = context;
    context.events.subscribe((event) => {
      // While no client reads the events, they are not translated, because each translation may need a query of the store.
      if (!this.feed.isFollowed) return;
      this.turn = this.turn.then(() => this.translate(event));
    });
  }

  /** Returns the text of an event that belongs to no task, such as the first event of a stream. */
  frame(type: 'hello' | 'ping'): string {
    return this.textOf(type, {});
  }

  private async translate(event: RolloutEvent): Promise<void> {
    const shown = await this.shownTask(event.task_id).catch((thrown: unknown) => {
      this.context.log.warn(
        { task_id: event.task_id, error: String(thrown) },
        'an event was dropped from the Polar stream',
      );
      return null;
    });
    if (shown === null) return;
    const { type, data } = polarEvent(event, shown);
    this.feed.append(this.textOf(type, data));
  }

  private async shownTask(taskId: string): Promise<ShownTask> {
    const known = this.tasks.get(taskId);
    if (known !== undefined) return known.shown;
    const shown = await this.context.store.read(async (tables): Promise<ShownTask> => {
      const alias = await tables.aliases.ofTask(taskId);
      const task = alias?.api === 'polar' ? await tables.tasks.get(taskId) : undefined;
      if (alias === undefined || task === undefined) return null;
      return { polarId: alias.alias, harness: task.harness, model: requestOf(task).agent.model_name };
    });
    this.tasks.set(taskId, { shown });
    return shown;
  }

  private textOf(type: string, data: object): string {
    return `data: ${JSON.stringify({ type, ts: isoNow(this.context.clock), data })}\n\n`;
  }
}

function polarEvent(event: RolloutEvent, task: NonNullable<ShownTask>): { type: string; data: object } {
  const { type } = event;
  const task_id = task.polarId;
  switch (event.type) {
    case 'task.created': {
      const { harness, model } = task;
      return { type, data: { task_id, status: 'running', harness, model, num_samples: event.total_sessions } };
    }
    case 'task.updated': {
      const { completed_sessions, total_sessions } = event;
      return { type, data: { task_id, completed_sessions, total_sessions } };
    }
    case 'task.completed': {
      const { requested, refilled } = event.group;
      return { type, data: { task_id, status: event.status, completed_sessions: requested + refilled } };
    }
    case 'session.state_changed': {
      const { session_id, status } = event;
      return { type, data: { task_id, session_id, status: polarState(status) } };
    }
  }
}
