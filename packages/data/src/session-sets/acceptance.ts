import { valueAt } from '@floe-rl/core';
import type { Acceptance, AcceptanceGroup } from './manifest.ts';
import type { SetRow } from './set-row.ts';

type Counts = {
  sessions: number;
  accepted: number;
  sampled: number;
  trained: number;
  readonly tasks: Set<string>;
  readonly tasksAccepted: Set<string>;
};

const emptyCounts = (): Counts => ({
  sessions: 0,
  accepted: 0,
  sampled: 0,
  trained: 0,
  tasks: new Set(),
  tasksAccepted: new Set(),
});

/** Returns the field of a row at a path such as `metadata.repo`, as text; `null` when it has none. */
export function fieldText(row: SetRow, path: string): string | null {
  const value = valueAt(row, path.split('.')) ?? null;
  return value === null || typeof value === 'string' ? value : JSON.stringify(value);
}

/** Counts accepted sessions by the value of one field, such as the repository of their tasks. */
export class AcceptanceTable {
  private readonly by: string;
  private readonly conditions: readonly string[];
  private readonly groups = new Map<string | null, Counts>();
  private readonly total = emptyCounts();

  /** `by` is the path of the field, and `conditions` the texts of the conditions for acceptance. */
  constructor(by: string, conditions: readonly string[]) {
    this.by = by;
    this.conditions = conditions;
  }

  add(row: SetRow, accepted: boolean): void {
    const value = fieldText(row, this.by);
    const group = this.groups.get(value) ?? emptyCounts();
    this.groups.set(value, group);
    for (const counts of [group, this.total]) {
      counts.sessions++;
      counts.sampled += row.audit?.tokens.sampled ?? 0;
      counts.trained += row.trainable_tokens;
      counts.tasks.add(row.task_id);
      if (!accepted) continue;
      counts.accepted++;
      counts.tasksAccepted.add(row.task_id);
    }
  }

  /** Returns the counts, ordered by value. The sessions without a value come last. */
  result(): Acceptance {
    const entries = [...this.groups].sort(([a], [b]) => (b === null || (a !== null && a < b) ? -1 : 1));
    return {
      conditions: [...this.conditions],
      by: this.by,
      groups: entries.map(([value, counts]) => ({ value, ...rowOf(counts) })),
      total: rowOf(this.total),
    };
  }
}

function rowOf({ sessions, accepted, sampled, trained, tasks, tasksAccepted }: Counts): Omit<AcceptanceGroup, 'value'> {
  return {
    sessions,
    accepted,
    rate: sessions === 0 ? 0 : Number((accepted / sessions).toFixed(4)),
    tasks: tasks.size,
    tasks_accepted: tasksAccepted.size,
    sampled_tokens: sampled,
    trained_tokens: trained,
  };
}
