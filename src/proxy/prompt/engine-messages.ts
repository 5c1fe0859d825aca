import { parseJson } from '../../core/parse.ts';
import type { AssistantMessage, ChatMessage, ToolCall } from '../../schema/index.ts';
import type { Completion } from '../../tokens/completion.ts';
import { countMarks } from '../../tokens/same-turn.ts';
import { MAX_BODY_VALUES } from '../http/body.ts';
import { parseCallId } from './call-ids.ts';
import type { MatchedTurn } from './prefix-index.ts';

/**
 * Maps the call ids of one turn that the harness uses to the engine's ids. It is needed where the harness replaced floe's ids by its own.
 */
type TurnIds = ReadonlyMap<string, string>;

type EngineText = { readonly text: string; readonly marks: number };

/**
 * Converts a session's messages to the form that engines accept. Calls and their results get the engine's ids back, which some templates
 * write into the prompt. Arguments that are not JSON become a JSON string: engines parse the arguments of every call in a history before
 * they render it, and would refuse the whole request because of one call with broken arguments, while templates print a string unchanged.
 * Arguments that are nested too deeply, or that exceed the number of values allowed for all arguments of a request, become a JSON string
 * as well.
 */
export class EngineMessages {
  private readonly recorded: (completionId: string) => Completion | null;
  /**
   * Converted messages whose result depends only on the message and the session's completions, and therefore is the same in every request.
   */
  private readonly cache = new WeakMap<ChatMessage, EngineText>();

  /** `recorded` returns the session's completion with an id, or `null` when the session has no such completion. */
  constructor(recorded: (completionId: string) => Completion | null) {
    this.recorded = recorded;
  }

  /**
   * Returns the messages as JSON texts in the engine's form. A message that needs no change keeps its text from `texts`. `last` is the
   * last turn of the history that is a recorded one; `null` when none is.
   */
  texts(messages: readonly ChatMessage[], texts: readonly string[], last: MatchedTurn | null): readonly string[] {
    const turns = turnsByStart(last);
    let marks = MAX_BODY_VALUES;
    let ids: TurnIds = new Map();
    let end = 0;
    return messages.map((message, index) => {
      const text = texts[index] as string;
      if (message.role === 'tool') return this.resultText(message, text, ids);
      if (message.role !== 'assistant') return text;
      const turn = turns.get(index);
      if (turn !== undefined || index >= end) ids = turn === undefined ? new Map() : foreignIds(messages, turn);
      if (turn !== undefined) end = index + turn.count;
      if (message.tool_calls === undefined) return text;
      const converted = this.turnText(message, text, ids, marks);
      marks -= converted.marks;
      return converted.text;
    });
  }

  /**
   * Maps a tool-call id of the harness to the id that the engine gave the same tool call. An id without a recorded call is returned
   * unchanged.
   */
  private engineId(id: string, ids: TurnIds): string {
    const call = parseCallId(id);
    const own = call === null ? undefined : this.recorded(call.completionId)?.engineCallIds[call.index];
    return own ?? ids.get(id) ?? id;
  }

  private resultText(message: ChatMessage & { role: 'tool' }, text: string, ids: TurnIds): string {
    const cached = this.cache.get(message);
    if (cached !== undefined) return cached.text;
    const id = this.engineId(message.tool_call_id, ids);
    if (id === message.tool_call_id) return text;
    const converted = JSON.stringify({ ...message, tool_call_id: id });
    if (!ids.has(message.tool_call_id)) this.cache.set(message, { text: converted, marks: 0 });
    return converted;
  }

  private turnText(message: AssistantMessage, text: string, ids: TurnIds, marks: number): EngineText {
    const cached = this.cache.get(message);
    if (cached !== undefined && cached.marks <= marks) return cached;
    const check = new BoundedJsonCheck(marks);
    let changed = false;
    let hasForeignId = false;
    let used = 0;
    const calls = (message.tool_calls ?? []).map((call): ToolCall => {
      const { name, arguments: args } = call.function;
      const id = this.engineId(call.id, ids);
      hasForeignId ||= ids.has(call.id);
      used += countMarks(args);
      // An empty text is left as it is, because engines accept it as no arguments.
      const isText = args !== '' && !check.isJson(args);
      if (!isText && id === call.id) return call;
      changed = true;
      return { ...call, id, function: { name, arguments: isText ? JSON.stringify(args) : args } };
    });
    const converted = { text: changed ? JSON.stringify({ ...message, tool_calls: calls }) : text, marks: used };
    if (!hasForeignId && used <= marks) this.cache.set(message, converted);
    return converted;
  }
}

/**
 * Checks whether argument texts are JSON, until all of them together have more than `marks` brackets and commas, as {@link countMarks}
 * counts them. The limit on the values of a request's body does not count inside strings, where parsing the arguments of the largest body
 * would take half a minute.
 */
class BoundedJsonCheck {
  private marks: number;

  constructor(marks: number) {
    this.marks = marks;
  }

  /**
   * Whether the text is JSON. Also `false` for a text that is nested too deeply, or that exceeds the number of brackets and commas that is
   * left.
   */
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

function turnsByStart(last: MatchedTurn | null): ReadonlyMap<number, MatchedTurn> {
  const turns = new Map<number, MatchedTurn>();
  for (let matched = last; matched !== null; matched = matched.previous) turns.set(matched.at, matched);
  return turns;
}

/**
 * Returns the engine's ids of those calls of a turn that the harness returned with ids other than floe's. The calls are matched by their
 * order.
 */
function foreignIds(messages: readonly ChatMessage[], { turn, at, count }: MatchedTurn): TurnIds {
  const ids = new Map<string, string>();
  const { engineCallIds } = turn.completion;
  let index = 0;
  for (const message of messages.slice(at, at + count)) {
    for (const { id } of (message as AssistantMessage).tool_calls ?? []) {
      const own = engineCallIds[index++];
      if (own !== undefined && parseCallId(id) === null) ids.set(id, own);
    }
  }
  return ids;
}
