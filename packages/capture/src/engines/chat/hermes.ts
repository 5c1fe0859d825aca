import { FloeError, isRecord } from '@floe-rl/core';
import type { AssistantMessage, EngineSpec, ToolCall } from '@floe-rl/core/schema';
import { assistantMessage, contentWithCalls } from './messages.ts';

const THINK_OPEN = '<think>';
const THINK_CLOSE = '</think>';
const CALL_OPEN = '<tool_call>';
const CALL_CLOSE = '</tool_call>';
// The lookbehinds keep the searches linear: without them, a long run of line breaks within a text would be searched once from each of them.
const BREAKS_AT_END = /(?<!\n)\n+$/;
const OUTER_BREAKS = /^\n+|(?<!\n)\n+$/g;

/** Options of {@link parseHermes}. `thinking` and `calls` state whether the text is searched for thinking and for tool calls. */
type HermesOptions = {
  readonly thinking: boolean;
  /** Whether the prompt ends inside a thinking block. */
  readonly opensThinking: boolean;
  readonly calls: boolean;
  /** Returns the id for the tool call with this index, because the text of a reply contains no ids for tool calls. */
  readonly callId: (index: number) => string;
};

/**
 * Parses a reply in the format of Hermes and Qwen models: thinking is between `<think>` and `</think>`, and each tool call is
 * `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. Arguments are kept as the text that was sampled. A block that is not a valid tool
 * call, or is not closed, stays in the text. The time is linear in the length of the text.
 */
export function parseHermes(text: string, options: HermesOptions): AssistantMessage {
  const { reasoning, rest } = options.thinking
    ? splitThinking(text, options.opensThinking)
    : { reasoning: '', rest: text };
  const { content, calls } = options.calls ? splitCalls(rest, options.callId) : { content: rest, calls: [] };
  return assistantMessage(contentWithCalls(content, calls), reasoning, calls);
}

function splitThinking(text: string, opened: boolean): { reasoning: string; rest: string } {
  const start = text.trimStart().startsWith(THINK_OPEN)
    ? text.indexOf(THINK_OPEN) + THINK_OPEN.length
    : opened
      ? 0
      : -1;
  if (start < 0) return { reasoning: '', rest: text };
  const end = text.indexOf(THINK_CLOSE, start);
  // Line breaks next to the thinking tags belong to the format and are removed.
  const reasoning = text.slice(start, end < 0 ? text.length : end).replace(OUTER_BREAKS, '');
  return { reasoning, rest: end < 0 ? '' : text.slice(end + THINK_CLOSE.length).replace(/^\n+/, '') };
}

function splitCalls(text: string, callId: HermesOptions['callId']): { content: string; calls: ToolCall[] } {
  const calls: ToolCall[] = [];
  const kept: string[] = [];
  let from = 0;
  for (let open = text.indexOf(CALL_OPEN); open >= 0; ) {
    const bodyStart = skipSpace(text, open + CALL_OPEN.length);
    const body = scanObject(text, bodyStart);
    const close = skipSpace(text, body.end);
    const call = body.entries !== null && text.startsWith(CALL_CLOSE, close) ? callOf(text, bodyStart, body) : null;
    if (call === null) {
      // The search continues after the text that was scanned, which keeps the total time linear.
      open = text.indexOf(CALL_OPEN, body.end);
      continue;
    }
    kept.push(text.slice(from, open));
    calls.push({ id: callId(calls.length), type: 'function', function: call });
    from = close + CALL_CLOSE.length;
    open = text.indexOf(CALL_OPEN, from);
  }
  if (calls.length === 0) return { content: text, calls };
  kept.push(text.slice(from));
  // Pieces between tool calls that are only white space are dropped. White space around text is kept, except for the line breaks before a
  // tool call.
  return {
    content: kept
      .filter((piece) => piece.trim() !== '')
      .join('')
      .replace(BREAKS_AT_END, ''),
    calls,
  };
}

type Span = { readonly start: number; readonly end: number };
/**
 * A JSON object found in a text. `entries` are the positions of its outermost keys and values, `null` when the object is incomplete; `end`
 * is the position up to which the text was scanned.
 */
type ScannedObject = { readonly end: number; readonly entries: readonly { key: Span; value: Span }[] | null };

function callOf(text: string, start: number, { end, entries }: ScannedObject): ToolCall['function'] | null {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text.slice(start, end));
  } catch {
    return null;
  }
  const { name, arguments: values } = parsed as { name?: unknown; arguments?: unknown };
  if (typeof name !== 'string' || name === '') return null;
  if (values === undefined) return { name, arguments: '{}' };
  if (!isRecord(values)) return null;
  // Of several keys with the same name, the last one counts, as in JSON.parse.
  const entry = entries?.findLast(({ key }) => JSON.parse(text.slice(key.start, key.end)) === 'arguments');
  return entry === undefined ? null : { name, arguments: text.slice(entry.value.start, entry.value.end) };
}

/** Finds the end of the JSON object at `start` and the values of its outermost keys. It does not check that the object is valid JSON. */
function scanObject(text: string, start: number): ScannedObject {
  if (text[start] !== '{') return { end: start, entries: null };
  const entries: { key: Span; value: Span }[] = [];
  let depth = 0;
  let key: Span | null = null;
  let valueStart = -1;
  const closeEntry = (end: number): void => {
    if (key !== null && valueStart >= 0)
      entries.push({ key, value: { start: valueStart, end: trimmedEnd(text, end) } });
    key = null;
    valueStart = -1;
  };
  for (let at = start; at < text.length; at++) {
    const char = text[at];
    if (char === '"') {
      const end = stringEnd(text, at);
      if (key === null) key = { start: at, end };
      at = end - 1;
    } else if (char === '{' || char === '[') depth++;
    else if (char === '}' || char === ']') {
      if (--depth === 0) {
        closeEntry(at);
        return { end: at + 1, entries };
      }
    } else if (depth === 1 && char === ':' && valueStart < 0) valueStart = skipSpace(text, at + 1);
    else if (depth === 1 && char === ',') closeEntry(at);
  }
  return { end: text.length, entries: null };
}

/**
 * Returns the position after the closing quote of the JSON string that begins at `open`, or the end of the text when the string is not
 * closed.
 */
function stringEnd(text: string, open: number): number {
  for (let at = open + 1; at < text.length; at++) {
    if (text[at] === '\\') at++;
    else if (text[at] === '"') return at + 1;
  }
  return text.length;
}

function skipSpace(text: string, from: number): number {
  let at = from;
  while (at < text.length && ' \n\r\t'.includes(text[at] as string)) at++;
  return at;
}

function trimmedEnd(text: string, end: number): number {
  let at = end;
  while (at > 0 && ' \n\r\t'.includes(text[at - 1] as string)) at--;
  return at;
}

/** Which parts of a reply floe itself parses, because the engine returns them as text. */
export type OwnParsers = { readonly hasThinking: boolean; readonly hasCalls: boolean };

/**
 * Decides which parts of replies {@link parseHermes} searches for. `template` is the engine's chat template. Throws `unsupported` when
 * `spec` names a parser that floe does not have.
 */
export function ownParsers(spec: EngineSpec, template: string): OwnParsers {
  const { kind, tool_parser, reasoning_parser } = spec;
  return {
    hasCalls: isParserUsed({ kind, field: 'tool_parser', known: 'hermes' }, tool_parser, template.includes(CALL_OPEN)),
    hasThinking: isParserUsed(
      { kind, field: 'reasoning_parser', known: 'qwen3' },
      reasoning_parser,
      template.includes(THINK_CLOSE),
    ),
  };
}

/** The setting `field` of an engine of this kind, and the only parser that it may name. */
type ParserSetting = { readonly kind: string; readonly field: string; readonly known: string };

/**
 * Whether a parser is used. When `configured` is `null`, the result is `isInTemplate`, which states whether the chat template contains the
 * tag of the format. Throws `unsupported` for a parser other than the known one.
 */
function isParserUsed(
  { kind, field, known }: ParserSetting,
  configured: string | null,
  isInTemplate: boolean,
): boolean {
  if (configured === null) return isInTemplate;
  if (configured === known) return true;
  throw new FloeError(
    'unsupported',
    `${field} ${JSON.stringify(configured)} for an engine of kind ${kind}; the only one is ${known}, or null to let its template decide`,
  );
}
