import { parseJson } from '@floe-rl/core';
import type { AssistantMessage, ChatMessage, ToolCall } from '@floe-rl/core/schema';
import type { Completion } from '../../tokens/completion.ts';
import { withImageUrls } from '../../tokens/images.ts';
import { countMarks } from '../../tokens/same-turn.ts';
import { MAX_BODY_VALUES } from '../http/body.ts';
import { parseCallId } from './call-ids.ts';
import type { MatchedTurn } from './prefix-index.ts';

/**
 * Maps the tool-call ids that a harness uses in one turn to the engine's ids. The map is empty unless the harness replaced the ids that
 * floe assigned.
 */
type TurnIds = ReadonlyMap<string, string>;

type PromptMessage = Exclude<ChatMessage, AssistantMessage>;

type EngineText = { readonly text: string; readonly marks: number };

/** The look-ups in a session that are needed to convert its messages for engines. */
export type RecordedParts = {
  /** Looks up a completion of this session by its id. Returns `null` when the session has no such completion. */
  readonly recorded: (completionId: string) => Completion | null;
  /** Returns the URL for which a reference to an image stands; any other URL is returned unchanged. */
  readonly imageUrl: (reference: string) => string;
};

/**
 * Converts a session's messages to the form that engines accept:
 *
 * - Tool calls and their results get the engine's ids back, because some chat templates write the ids into the prompt.
 * - References to images become the URLs that contain the images.
 * - Tool-call arguments that are not JSON are encoded as a JSON string. Otherwise the engine, which parses the arguments of every tool
 *   call, would refuse the whole request. Chat templates print a string unchanged.
 * - Arguments that are nested too deeply, or that exceed the number of values allowed for all arguments of a request, are encoded as a JSON
 *   string as well.
 */
export class EngineMessages {
  private readonly session: RecordedParts;
  /**
   * Cache of converted messages. It holds only messages whose conversion depends on nothing but the message and the session's completions,
   * because such a conversion has the same result in every request.
   */
  private readonly cache = new WeakMap<ChatMessage, EngineText>();

  constructor(session: RecordedParts) {
    this.session = session;
  }

  /**
   * Returns the messages as JSON texts in the form that engines accept. A message that needs no change keeps its text from `texts`. `last`
   * is the last recorded turn that was found in `messages`; `null` when none was found.
   */
  texts(messages: readonly ChatMessage[], texts: readonly string[], last: MatchedTurn | null): readonly string[] {
    const turns = turnsByStart(last);
    let marks = MAX_BODY_VALUES;
    let ids: TurnIds = new Map();
    let end = 0;
    return messages.map((message, index) => {
      const text = texts[index] as string;
      if (message.role !== 'assistant') return this.textWithImages(message, text, ids);
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
   * Returns the engine's id for a tool call that the harness names by `id`. An id that belongs to no recorded tool call is returned
   * unchanged.
   */
  private engineId(id: string, ids: TurnIds): string {
    const call = parseCallId(id);
    const own = call === null ? undefined : this.session.recorded(call.completionId)?.engineCallIds[call.index];
    return own ?? ids.get(id) ?? id;
  }

  /**
   * Returns the text of a message that the policy did not write. A text with images is not cached, because one image may take megabytes.
   */
  private textWithImages(message: PromptMessage, text: string, ids: TurnIds): string {
    const shown = withImageUrls(message, this.session.imageUrl);
    if (shown === message) return message.role === 'tool' ? this.resultText(message, text, ids) : text;
    if (shown.role !== 'tool') return JSON.stringify(shown);
    return JSON.stringify({ ...shown, tool_call_id: this.engineId(shown.tool_call_id, ids) });
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
      // Empty arguments stay as they are, because engines treat them as no arguments.
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
 * Checks whether tool-call arguments are JSON. The total work is limited: once the checked texts together have more than `marks` brackets
 * and commas, as {@link countMarks} counts them, the result is always `false`. The limit {@link MAX_BODY_VALUES} does not count the values
 * in arguments, because arguments are JSON inside strings. Without a limit, parsing the arguments of the largest possible body would take
 * half a minute.
 */
class BoundedJsonCheck {
  private marks: number;

  constructor(marks: number) {
    this.marks = marks;
  }

  /**
   * Whether the text is JSON. Also `false` for a text that is nested too deeply, or that has more brackets and commas than the limit still
   * allows.
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
 * Maps tool-call ids that the harness made up for the calls of a recorded turn to the engine's ids. The calls are matched by their order.
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
