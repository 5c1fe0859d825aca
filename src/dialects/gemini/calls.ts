import { isJsonObject, type JsonObject } from '../json-object.ts';
import type { WireContent } from './schema.ts';

/** A call of an assistant turn, with its canonical id and whether the client sent that id. */
export type TurnCall = { readonly id: string; readonly name: string; readonly hasWireId: boolean };

/**
 * Generates ids for calls that have none. A call gets the same id in every request of a growing conversation, and never an id that the
 * client sent.
 */
export class CallIds {
  private readonly contents: readonly WireContent[];
  private wireIds: Set<string> | null = null;

  constructor(contents: readonly WireContent[]) {
    this.contents = contents;
  }

  /** Returns the id of call number `index` of assistant turn number `turn`. */
  idOf(turn: number, index: number): string {
    this.wireIds ??= wireIdsOf(this.contents);
    let id = `call_${turn}_${index}`;
    // Each iteration rules out another id of the client, so the loops for all calls together take no more iterations than the client has
    // sent ids.
    while (this.wireIds.has(id)) id += '_';
    return id;
  }
}

function wireIdsOf(contents: readonly WireContent[]): Set<string> {
  const ids = new Set<string>();
  for (const { parts } of contents) {
    for (const part of parts ?? []) {
      const id = part.functionCall?.id ?? part.functionResponse?.id;
      if (id) ids.add(id);
    }
  }
  return ids;
}

/**
 * Indexes of calls in order. `next` is the first index that may still be unanswered. It only grows, so that answered calls are skipped
 * once and pairing takes linear time.
 */
type Queue = { readonly indexes: number[]; next: number };

/** The calls of one assistant turn that have no result yet. */
export class OpenCalls {
  private readonly calls: readonly TurnCall[];
  private readonly answered: boolean[];
  private readonly byId = new Map<string, Queue>();
  private readonly byName = new Map<string, Queue>();
  private readonly inOrder: Queue;
  private readonly allHaveWireIds: boolean;

  constructor(calls: readonly TurnCall[]) {
    this.calls = calls;
    this.answered = calls.map(() => false);
    this.allHaveWireIds = calls.every((call) => call.hasWireId);
    this.inOrder = { indexes: [...calls.keys()], next: 0 };
    for (const [index, call] of calls.entries()) {
      if (call.hasWireId) enqueue(this.byId, call.id, index);
      enqueue(this.byName, call.name, index);
    }
  }

  /**
   * Finds the call that a tool result answers and returns its id. This is the call with the result's id; for a result without an id, it
   * is the first open call with its name, otherwise the first open call. An unknown id counts as missing when some call of the turn has
   * no id. Returns `null` when no open call matches.
   */
  answer(name: string, id: string | null): string | null {
    const withId = id === null ? undefined : this.byId.get(id);
    if (withId !== undefined || (id !== null && this.allHaveWireIds)) return this.take(withId);
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

/** Key under which argument text that is not a JSON object is wrapped, because `args` must be an object. Claude Code uses the same key. */
const UNPARSED_KEY = '__unparsedToolInput';

/**
 * Returns the JSON text of `args`. A sampled JSON object is inserted exactly as sampled, so that the order of keys and the spelling of
 * numbers are kept. Any other text is wrapped, and so is an object that itself has the form of a wrapped one.
 */
export function argsJson(raw: string): string {
  if (raw.trim() === '') return '{}';
  try {
    const parsed: unknown = JSON.parse(raw);
    if (isJsonObject(parsed) && unwrapArgs(parsed) === null) return raw;
  } catch {
    // The text is not JSON and is wrapped below.
  }
  return JSON.stringify({ [UNPARSED_KEY]: { raw, len: raw.length } });
}

/** Returns the argument text of `args` that a client returned: the raw text of wrapped arguments, otherwise compact JSON. */
export function argumentText(args: JsonObject): string {
  return unwrapArgs(args) ?? JSON.stringify(args);
}

/** Returns the raw text of wrapped arguments; `null` when the arguments are not wrapped. */
function unwrapArgs(args: JsonObject): string | null {
  if (!Object.hasOwn(args, UNPARSED_KEY) || Object.keys(args).length !== 1) return null;
  const inner = args[UNPARSED_KEY];
  if (!isJsonObject(inner) || Object.keys(inner).length !== 2) return null;
  const { raw, len } = inner;
  return typeof raw === 'string' && len === raw.length ? raw : null;
}
