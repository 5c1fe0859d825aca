import { isDeepStrictEqual } from 'node:util';
import { countMarks } from '../proxy/prompt/json-text.ts';
import type { AssistantMessage, ChatTool, ToolCall } from '../schema/index.ts';

/**
 * Whether an assistant turn of a history says what a reply said: the same text, but for white space around it; the same calls,
 * in order, with arguments that mean the same; and the same thinking, or none. Ids do not count. `tools`: those that the reply was
 * sampled with.
 */
export function sameTurn(echo: AssistantMessage, reply: AssistantMessage, tools: readonly ChatTool[]): boolean {
  return (
    sameText(echo, reply) &&
    sameThinking(echo, reply) &&
    sameCalls(echo.tool_calls ?? [], reply.tool_calls ?? [], tools)
  );
}

/** Harnesses may trim. */
export function sameText(echo: AssistantMessage, reply: AssistantMessage): boolean {
  return sameTrimmed(echo.content ?? '', reply.content ?? '');
}

function sameThinking(echo: AssistantMessage, reply: AssistantMessage): boolean {
  const echoed = echo.reasoning_content ?? '';
  return echoed === '' || sameTrimmed(echoed, reply.reasoning_content ?? '');
}

function sameTrimmed(a: string, b: string): boolean {
  return a === b || a.trim() === b.trim();
}

function sameCalls(echoed: readonly ToolCall[], sampled: readonly ToolCall[], tools: readonly ChatTool[]): boolean {
  if (echoed.length !== sampled.length) return false;
  return sampled.every(({ function: { name, arguments: text } }, index) => {
    const other = (echoed[index] as ToolCall).function;
    if (name !== other.name) return false;
    return sameArguments(text, other.arguments) || sameWithDefaults(text, other.arguments, toolNamed(tools, name));
  });
}

function toolNamed(tools: readonly ChatTool[], name: string): ChatTool | undefined {
  return tools.find((tool) => tool.function.name === name);
}

/**
 * Whether the echo only adds what the tool's own schema says is so where nothing is said: harnesses that check arguments write the
 * defaults into them.
 */
function sameWithDefaults(sampled: string, echoed: string, tool: ChatTool | undefined): boolean {
  const properties = tool?.function.parameters?.properties;
  const [own, given] = [objectOf(sampled), objectOf(echoed)];
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

/** Null for what is no JSON object. */
function objectOf(text: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(orNone(text));
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? { ...value } : null;
  } catch {
    return null;
  }
}

/** Parsed only where they may be the same: what is echoed may be of any size. */
export function sameArguments(sampled: string, echoed: string): boolean {
  if (sampled === echoed) return true;
  const [a, b] = [orNone(sampled), orNone(echoed)];
  return countMarks(a) === countMarks(b) && canonical(a) === canonical(b);
}

/** Where a dialect has an object for arguments, no text becomes an empty one. */
function orNone(text: string): string {
  return text.trim() === '' ? '{}' : text;
}

/** Harnesses write arguments anew, some with the keys in another order. */
function canonical(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), (_, value: unknown) =>
      typeof value === 'object' && value !== null && !Array.isArray(value)
        ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)))
        : value,
    );
  } catch {
    return text.trim();
  }
}

/** Consecutive assistant messages as the one turn that they may be: dialects split and join them. */
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
