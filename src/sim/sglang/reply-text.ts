import { FloeError } from '../../core/errors.ts';
import { rawField } from '../call-text.ts';

/** The parsers' names: those that the simulated model needs, and no others. */
export const TOOL_CALL_PARSER = 'qwen25';
export const REASONING_PARSER = 'qwen3';

export const THINK_OPEN = '<think>';
export const THINK_CLOSE = '</think>';
export const CALL_OPEN = '<tool_call>\n';
export const CALL_CLOSE = '\n</tool_call>';

/** A call as the parser reads it: `parameters` is JSON text that has been written anew. */
export type TextCall = { readonly name: string; readonly parameters: string };

/** Throws `engine_rejected` for a parser that this server does not have. */
export function checkParser(kind: 'tool_call_parser' | 'reasoning_parser', name: string): void {
  const known = kind === 'tool_call_parser' ? TOOL_CALL_PARSER : REASONING_PARSER;
  if (name !== known) throw new FloeError('engine_rejected', `Unsupported ${kind}: ${name}. It must be: ${known}`);
}

/**
 * Splits a whole reply into thinking and the rest, by its text alone. `forced`: the prompt opened the thinking, so the text
 * begins within it. Without an end, all of it is thinking.
 */
export function separateReasoning(
  text: string,
  forced: boolean,
): { readonly reasoning: string; readonly text: string } {
  if (!forced && !text.includes(THINK_OPEN)) return { reasoning: '', text };
  let body = text;
  while (body.startsWith(THINK_OPEN)) body = body.slice(THINK_OPEN.length);
  const end = body.indexOf(THINK_CLOSE);
  if (end < 0) return { reasoning: body, text: '' };
  return { reasoning: body.slice(0, end), text: body.slice(end + THINK_CLOSE.length) };
}

/**
 * Reads the calls of a whole reply, by its text alone: complete blocks that are JSON and name one of `tools`. What else there is
 * in or behind the first block is dropped, unless no call could be read at all: then the text is left as it is.
 */
export function parseCalls(
  text: string,
  tools: ReadonlySet<string>,
): { readonly text: string; readonly calls: TextCall[] } {
  const first = text.indexOf(CALL_OPEN);
  const calls: TextCall[] = [];
  let at = first;
  while (at >= 0) {
    const start = at + CALL_OPEN.length;
    const end = text.indexOf(CALL_CLOSE, start);
    if (end < 0) break;
    const call = readCall(text.slice(start, end), tools);
    if (call !== null) calls.push(call);
    at = text.indexOf(CALL_OPEN, end + CALL_CLOSE.length);
  }
  return calls.length === 0 ? { text, calls } : { text: text.slice(0, first).trim(), calls };
}

/** Null for text that is no JSON object, or names no tool of the request. */
export function readCall(text: string, tools: ReadonlySet<string>): TextCall | null {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return null;
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return null;
  const { name, parameters } = value as { readonly name?: unknown; readonly parameters?: unknown };
  if (typeof name !== 'string' || !tools.has(name)) return null;
  const raw = rawField(text, isEmpty(parameters) ? 'arguments' : 'parameters');
  return { name, parameters: respaced(raw ?? '{}') };
}

/** What Python counts as false. */
function isEmpty(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return !value;
  return Object.keys(value).length === 0;
}

const JSON_PARTS = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

/**
 * Writes valid JSON text as Python's `json.dumps` does after reading it: a blank behind each comma and colon, no other white
 * space, escapes only where they must be. Numbers stay as they are written.
 */
export function respaced(text: string): string {
  const parts = text.match(JSON_PARTS) ?? [];
  return parts
    .map((part) => {
      if (part === ',' || part === ':') return `${part} `;
      return part.startsWith('"') ? JSON.stringify(JSON.parse(part)) : part;
    })
    .join('');
}

/** Names of a request's tools. Entries that are no function with a name are left out. */
export function toolNames(tools: readonly unknown[] | null | undefined): ReadonlySet<string> {
  const names = (tools ?? []).map(
    (tool) => (tool as { readonly function?: { readonly name?: unknown } })?.function?.name,
  );
  return new Set(names.filter((name) => typeof name === 'string'));
}
