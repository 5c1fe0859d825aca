import type { ForeignContent } from './schema.ts';

/** A call of a model turn: its canonical id, and whether the client gave it. */
export type TurnCall = { readonly id: string; readonly name: string; readonly given: boolean };

/** Ids for calls that came without one: the same in every request of a growing conversation, and never one that was given. */
export class CallIds {
  private readonly contents: readonly ForeignContent[];
  private given: Set<string> | null = null;

  constructor(contents: readonly ForeignContent[]) {
    this.contents = contents;
  }

  /** For call `index` of model turn `turn`. */
  idOf(turn: number, index: number): string {
    this.given ??= givenIds(this.contents);
    let id = `call_${turn}_${index}`;
    // Every further try costs a given id of its own, so all of them together are no more than those.
    while (this.given.has(id)) id += '_';
    return id;
  }
}

function givenIds(contents: readonly ForeignContent[]): Set<string> {
  const ids = new Set<string>();
  for (const { parts } of contents) {
    for (const part of parts ?? []) {
      const id = part.functionCall?.id ?? part.functionResponse?.id;
      if (id) ids.add(id);
    }
  }
  return ids;
}

/** Calls in order, of which the answered ones are skipped once and for all. */
type Queue = { readonly indexes: number[]; next: number };

/** The calls of one model turn that wait for their results. */
export class OpenCalls {
  private readonly calls: readonly TurnCall[];
  private readonly answered: boolean[];
  private readonly byId = new Map<string, Queue>();
  private readonly byName = new Map<string, Queue>();
  private readonly inOrder: Queue;
  private readonly allGiven: boolean;

  constructor(calls: readonly TurnCall[]) {
    this.calls = calls;
    this.answered = calls.map(() => false);
    this.allGiven = calls.every((call) => call.given);
    this.inOrder = { indexes: [...calls.keys()], next: 0 };
    for (const [index, call] of calls.entries()) {
      if (call.given) enqueue(this.byId, call.id, index);
      enqueue(this.byName, call.name, index);
    }
  }

  /**
   * The id of the call that a result answers: the one with its id; without an id the first open one of that name, else the
   * first open one. An id that is nobody's counts as none where calls came without. Null: there is nothing to answer.
   */
  answer(name: string, id: string | null): string | null {
    const own = id === null ? undefined : this.byId.get(id);
    if (own !== undefined || (id !== null && this.allGiven)) return this.take(own);
    return this.take(this.byName.get(name)) ?? this.take(this.inOrder);
  }

  private take(queue: Queue | undefined): string | null {
    if (queue === undefined) return null;
    for (; queue.next < queue.indexes.length; queue.next++) {
      const index = queue.indexes[queue.next] as number;
      if (this.answered[index]) continue;
      this.answered[index] = true;
      return this.calls[index]?.id ?? null;
    }
    return null;
  }
}

function enqueue(queues: Map<string, Queue>, key: string, index: number): void {
  const queue = queues.get(key);
  if (queue === undefined) queues.set(key, { indexes: [index], next: 0 });
  else queue.indexes.push(index);
}
