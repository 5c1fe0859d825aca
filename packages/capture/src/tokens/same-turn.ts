import { isDeepStrictEqual } from 'node:util';
import { canonicalJson, isRecord } from '@floe-rl/core';
import type { AssistantMessage, ChatMessage, ChatTool, ToolCall } from '@floe-rl/core/schema';

/**
 * Whether an assistant turn of a request's history has the content of a recorded reply. The text must be the same except for surrounding white
 * space. The tool calls must be the same, in order, with arguments of the same meaning; their ids are ignored. The turn has the same thinking
 * as the reply, or none. `tools` are the tools of the request that the reply answers.
 */
export function sameTurn(turn: AssistantMessage, reply: AssistantMessage, tools: readonly ChatTool[]): boolean {
  return (
    sameText(turn, reply) &&
    sameThinking(turn, reply) &&
    sameCalls(turn.tool_calls ?? [], reply.tool_calls ?? [], tools)
  );
}

/** Whether two turns have the same text. Surrounding white space is ignored, because harnesses trim texts. */
export function sameText(turn: AssistantMessage, reply: AssistantMessage): boolean {
  return sameTrimmed(turn.content ?? '', reply.content ?? '');
}

function sameThinking(turn: AssistantMessage, reply: AssistantMessage): boolean {
  const thinking = turn.reasoning_content ?? '';
  return thinking === '' || sameTrimmed(thinking, reply.reasoning_content ?? '');
}

function sameTrimmed(a: string, b: string): boolean {
  return a === b || a.trim() === b.trim();
}

function sameCalls(returned: readonly ToolCall[], sampled: readonly ToolCall[], tools: readonly ChatTool[]): boolean {
  if (returned.length !== sampled.length) return false;
  return sampled.every(({ function: { name, arguments: text } }, index) => {
    const other = (returned[index] as ToolCall).function;
    if (name !== other.name) return false;
    return sameArguments(text, other.arguments) || sameWithDefaults(text, other.arguments, toolNamed(tools, name));
  });
}

function toolNamed(tools: readonly ChatTool[], name: string): ChatTool | undefined {
  return tools.find((tool) => tool.function.name === name);
}

/**
 * Whether the returned arguments equal the sampled ones except for added properties whose values are the defaults in the tool's schema.
 * Harnesses that validate arguments add these defaults.
 */
function sameWithDefaults(sampled: string, returned: string, tool: ChatTool | undefined): boolean {
  const properties = tool?.function.parameters?.properties;
  const [own, given] = [objectOf(sampled), objectOf(returned)];
  if (own === null || given === null || typeof properties !== 'object' || properties === null) return false;
  const added = Object.keys(given).filter((key) => !Object.hasOwn(own, key));
  if (added.length === 0 || !added.every((key) => isDefault(properties, key, given[key]))) return false;
  const kept = Object.fromEntries(Object.entries(given).filter(([key]) => Object.hasOwn(own, key)));
  return sameArguments(sampled, JSON.stringify(kept));
}

function isDefault(properties: object, key: string, value: unknown): boolean {
  const schema: unknown = Object.hasOwn(properties, key) ? (properties as Record<string, unknown>)[key] : undefined;
  if (typeof schema !== 'object' || schema === null || !('default' in schema)) return false;
  return isDeepStrictEqual(schema.default, value);
}

/** Parses the arguments of a tool call. An empty text counts as an empty object. Returns `null` when the text is not a JSON object. */
function objectOf(text: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(orEmptyObject(text));
    return isRecord(value) ? { ...value } : null;
  } catch {
    return null;
  }
}

/**
 * Finds runs of 16 or more digits, which a double cannot always represent exactly. Two different numbers of such a length may be parsed to
 * the same value, so their digits are compared as text.
 */
const LONG_NUMBERS = /\d{16,}/g;

/**
 * Whether two texts of tool-call arguments have the same meaning: equal JSON, whatever the white space and order of keys, or equal text
 * when they are not JSON. The texts are parsed only when {@link countMarks} returns the same number for both, because a text that a harness
 * returned may be of any size.
 */
export function sameArguments(sampled: string, returned: string): boolean {
  if (sampled === returned) return true;
  const [a, b] = [orEmptyObject(sampled), orEmptyObject(returned)];
  return countMarks(a) === countMarks(b) && canonicalText(a) === canonicalText(b) && longNumbers(a) === longNumbers(b);
}

function longNumbers(text: string): string {
  return (text.match(LONG_NUMBERS) ?? []).sort().join();
}

/** Replaces empty tool-call arguments by an empty object, as dialects whose arguments are objects do. */
function orEmptyObject(text: string): string {
  return text.trim() === '' ? '{}' : text;
}

function canonicalText(text: string): string {
  try {
    return canonicalJson(JSON.parse(text));
  } catch {
    return text.trim();
  }
}

const OPEN_BRACE = 0x7b;
const OPEN_BRACKET = 0x5b;
const COMMA = 0x2c;

/**
 * Counts the opening brackets, opening braces and commas in a JSON text, including those in strings. The count plus one is an upper bound
 * of the number of values in the text. The count does not depend on white space or the order of keys.
 */
export function countMarks(text: string): number {
  let marks = 0;
  for (let i = 0; i < text.length; i++) {
    const char = text.charCodeAt(i);
    if (char === OPEN_BRACE || char === OPEN_BRACKET || char === COMMA) marks++;
  }
  return marks;
}

/**
 * Compares the tool calls of a turn in a request with the tool calls of the recorded reply. The result is `identical` when names and argument
 * texts are the same, `reserialized` when only an argument text differs but not its meaning, and `different` otherwise. Ids are ignored,
 * because floe assigned them and the model did not sample them.
 */
export function compareCalls(
  sampled: readonly ToolCall[],
  returned: readonly ToolCall[],
): 'identical' | 'reserialized' | 'different' {
  if (sampled.length !== returned.length) return 'different';
  let identical = true;
  for (const [index, { function: call }] of sampled.entries()) {
    const other = (returned[index] as ToolCall).function;
    if (call.name !== other.name) return 'different';
    if (call.arguments === other.arguments) continue;
    if (!sameArguments(call.arguments, other.arguments)) return 'different';
    identical = false;
  }
  return identical ? 'identical' : 'reserialized';
}

/** Whether two messages are equal in every part: text, thinking, and tool calls with their ids and argument texts. */
export function identicalMessages(a: AssistantMessage, b: AssistantMessage): boolean {
  const [calls, others] = [a.tool_calls ?? [], b.tool_calls ?? []];
  return (
    a.content === b.content &&
    a.reasoning_content === b.reasoning_content &&
    calls.length === others.length &&
    calls.every(({ id, function: call }, index) => {
      const other = others[index];
      return id === other?.id && call.name === other.function.name && call.arguments === other.function.arguments;
    })
  );
}

/** Joins consecutive assistant messages into one, because dialects split a turn into several messages, such as thinking and text. */
export function joinedTurn(messages: readonly AssistantMessage[]): AssistantMessage {
  const [first] = messages;
  if (messages.length === 1 && first !== undefined) return first;
  const calls = messages.flatMap((message) => message.tool_calls ?? []);
  const reasoning = messages.map((message) => message.reasoning_content ?? '').join('');
  return {
    role: 'assistant',
    content: messages.map((message) => message.content ?? '').join(''),
    ...(reasoning === '' ? {} : { reasoning_content: reasoning }),
    ...(calls.length === 0 ? {} : { tool_calls: calls }),
  };
}

/** Returns the index after a run of consecutive assistant messages that starts at index `from`. */
export function endOfTurn(messages: readonly ChatMessage[], from: number): number {
  let at = from;
  while (messages[at]?.role === 'assistant') at++;
  return at;
}
