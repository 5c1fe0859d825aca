import { isRecord } from '@floe-rl/core';
import type { JsonObject } from '../json-object.ts';
import type { WireContent } from './schema.ts';

/** A tool call of an assistant turn. `hasWireId` is true when the client sent the id, and false when {@link CallIds} generated it. */
export type TurnCall = { readonly id: string; readonly name: string; readonly hasWireId: boolean };

/**
 * Generates ids for tool calls that the client sent without an id. A call gets the same id in every request of a growing conversation, and
 * never an id that the client sent for another call.
 */
export class CallIds {
  private readonly contents: readonly WireContent[];
  private wireIds: Set<string> | null = null;

  constructor(contents: readonly WireContent[]) {
    this.contents = contents;
  }

  /** Returns the generated id of tool call number `index` in assistant turn number `turn`. */
  idOf(turn: number, index: number): string {
    this.wireIds ??= wireIdsOf(this.contents);
    let id = `call_${turn}_${index}`;
    // Appends underscores until the generated id differs from every id that the client sent.
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
 * Indexes of tool calls, in order. `next` is the position of the first call that may still be unanswered. It only grows, so answered calls
 * are skipped once and matching results to calls takes linear time.
 */
type Queue = { readonly indexes: number[]; next: number };

/** The tool calls of one assistant turn that have no result yet. */
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
   * Finds the tool call that a result answers and returns the id of the call; `null` when no unanswered call matches. A result with the id of
   * a call answers this call. Any other result answers the first unanswered call of its tool, or else the first unanswered call of the turn.
   * When the client sent an id with every call of the turn, a result with an unknown id answers no call.
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

/**
 * Key under which argument text that is not a JSON object is sent, because `args` must be an object. Claude Code uses the same key.
 */
const UNPARSED_KEY = '__unparsedToolInput';

/**
 * Returns the JSON text of the field `args`, which must be an object. A sampled JSON object is inserted exactly as sampled, so that the
 * order of keys and the spelling of numbers are kept. Any other text is stored inside an object under {@link UNPARSED_KEY}. A sampled
 * object that already has this form is stored in the same way, so that {@link argumentText} restores exactly what was sampled.
 */
export function argsJson(raw: string): string {
  if (raw.trim() === '') return '{}';
  try {
    const parsed: unknown = JSON.parse(raw);
    if (isRecord(parsed) && unwrapArgs(parsed) === null) return raw;
  } catch {
    // Arguments that are not JSON are stored in an object by the return statement after this block.
  }
  return JSON.stringify({ [UNPARSED_KEY]: { raw, len: raw.length } });
}

/**
 * Converts the `args` that a client returned to the argument text of a tool call: the text under {@link UNPARSED_KEY} if {@link argsJson}
 * stored it there, otherwise `args` as compact JSON.
 */
export function argumentText(args: JsonObject): string {
  return unwrapArgs(args) ?? JSON.stringify(args);
}

/** Returns the text that {@link argsJson} stored under {@link UNPARSED_KEY}; `null` when `args` does not have this form. */
function unwrapArgs(args: JsonObject): string | null {
  if (!Object.hasOwn(args, UNPARSED_KEY) || Object.keys(args).length !== 1) return null;
  const inner = args[UNPARSED_KEY];
  if (!isRecord(inner) || Object.keys(inner).length !== 2) return null;
  const { raw, len } = inner;
  return typeof raw === 'string' && len === raw.length ? raw : null;
}
