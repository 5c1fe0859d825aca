import { parseJson } from '../../core/parse.ts';
import type { AssistantMessage, ChatMessage, ToolCall } from '../../schema/index.ts';
import type { Completion } from '../../tokens/completion.ts';
import { countMarks } from '../../tokens/same-turn.ts';
import { MAX_BODY_VALUES } from '../http/body.ts';
import { callNamed } from './call-ids.ts';
import type { KnownTurn } from './prefix-index.ts';

/** Engine's ids by those that the harness uses, for one turn whose ids are not floe's. */
type TurnIds = ReadonlyMap<string, string>;

type Written = { readonly text: string; readonly marks: number };

/**
 * The messages of a session as engines take them. Calls and their results have the engine's own ids again, which some templates
 * write into the prompt. Arguments that are no JSON are a JSON string: engines read the arguments of every call in a history
 * before they render it, and refuse the whole request when a policy's broken ones come back in it; a string is text to them,
 * which templates write as it is. So go arguments that are nested too deeply or, with those before them, hold too many values
 * to be read.
 */
export class EngineMessages {
  private readonly recorded: (completionId: string) => Completion | null;
  /** What needs no more than the session's own completions to be written is written once. */
  private readonly written = new WeakMap<ChatMessage, Written>();

  /** `recorded`: the session's completion of that id. */
  constructor(recorded: (completionId: string) => Completion | null) {
    this.recorded = recorded;
  }

  /** JSON texts; those of `texts` where there is nothing to change. `last` and what is before it: the turns that are known. */
  texts(messages: readonly ChatMessage[], texts: readonly string[], last: KnownTurn | null): readonly string[] {
    const known = turnsByStart(last);
    let marks = MAX_BODY_VALUES;
    let ids: TurnIds = new Map();
    let end = 0;
    return messages.map((message, index) => {
      const text = texts[index] as string;
      if (message.role === 'tool') return this.resultText(message, text, ids);
      if (message.role !== 'assistant') return text;
      const turn = known.get(index);
      if (turn !== undefined || index >= end) ids = turn === undefined ? new Map() : idsOf(messages, turn);
      if (turn !== undefined) end = index + turn.count;
      if (message.tool_calls === undefined) return text;
      const written = this.turnText(message, text, ids, marks);
      marks -= written.marks;
      return written.text;
    });
  }

  /** The engine's id of a call. */
  idOf(id: string, ids: TurnIds): string {
    const named = callNamed(id);
    const own = named === null ? undefined : this.recorded(named.completionId)?.engineCallIds[named.index];
    return own ?? ids.get(id) ?? id;
  }

  private resultText(message: ChatMessage & { role: 'tool' }, text: string, ids: TurnIds): string {
    const known = this.written.get(message);
    if (known !== undefined) return known.text;
    const id = this.idOf(message.tool_call_id, ids);
    if (id === message.tool_call_id) return text;
    const written = JSON.stringify({ ...message, tool_call_id: id });
    if (!ids.has(message.tool_call_id)) this.written.set(message, { text: written, marks: 0 });
    return written;
  }

  private turnText(message: AssistantMessage, text: string, ids: TurnIds, marks: number): Written {
    const known = this.written.get(message);
    if (known !== undefined && known.marks <= marks) return known;
    const check = new BoundedJsonCheck(marks);
    let changed = false;
    let foreign = false;
    let used = 0;
    const calls = (message.tool_calls ?? []).map((call): ToolCall => {
      const { name, arguments: args } = call.function;
      const id = this.idOf(call.id, ids);
      foreign ||= ids.has(call.id);
      used += countMarks(args);
      // Engines take no text at all for no arguments.
      const isText = args !== '' && !check.isJson(args);
      if (!isText && id === call.id) return call;
      changed = true;
      return { ...call, id, function: { name, arguments: isText ? JSON.stringify(args) : args } };
    });
    const written = { text: changed ? JSON.stringify({ ...message, tool_calls: calls }) : text, marks: used };
    if (!foreign && used <= marks) this.written.set(message, written);
    return written;
  }
}

/**
 * Checks whether argument texts are JSON, for at most `marks` marks in all of them together. The bound on the values of a request's
 * body does not count inside strings, where a body of the largest size would take half a minute to parse.
 */
class BoundedJsonCheck {
  private marks: number;

  constructor(marks: number) {
    this.marks = marks;
  }

  /** `false` also for a text that is nested too deeply, or that exceeds the remaining marks. */
  isJson(text: string): boolean {
    this.marks -= countMarks(text);
    if (this.marks < 0) return false;
    try {
      parseJson(text);
      return true;
    } catch {
      return false;
    }
  }
}

function turnsByStart(last: KnownTurn | null): ReadonlyMap<number, KnownTurn> {
  const turns = new Map<number, KnownTurn>();
  for (let known = last; known !== null; known = known.before) turns.set(known.at, known);
  return turns;
}

/** Of a turn whose calls came back with ids that are not floe's: they are known by their order. */
function idsOf(messages: readonly ChatMessage[], { turn, at, count }: KnownTurn): TurnIds {
  const ids = new Map<string, string>();
  const { engineCallIds } = turn.completion;
  let index = 0;
  for (const message of messages.slice(at, at + count)) {
    for (const { id } of (message as AssistantMessage).tool_calls ?? []) {
      const own = engineCallIds[index++];
      if (own !== undefined && callNamed(id) === null) ids.set(id, own);
    }
  }
  return ids;
}
