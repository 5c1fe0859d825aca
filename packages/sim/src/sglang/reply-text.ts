import { FloeError, isRecord } from '@floe-rl/core';
import { type MessageDelta, parseJsonText, rawField } from '../reply-parser.ts';

/** Name of the only tool-call parser of the simulated server. It parses the calls of the simulated model. */
export const TOOL_CALL_PARSER = 'qwen25';
/** Name of the only reasoning parser of the simulated server. It parses the thinking of the simulated model. */
export const REASONING_PARSER = 'qwen3';

const THINK_OPEN = '<think>';
const THINK_CLOSE = '</think>';
const CALL_OPEN = '<tool_call>\n';
const CALL_CLOSE = '\n</tool_call>';

/** A parsed tool call. `parameters` is JSON text reformatted by {@link pythonJson}. */
type TextCall = { readonly name: string; readonly parameters: string };

/** Throws `engine_rejected` for a parser that the server does not have. */
export function checkParser(kind: 'tool_call_parser' | 'reasoning_parser', name: string): void {
  const supported = kind === 'tool_call_parser' ? TOOL_CALL_PARSER : REASONING_PARSER;
  if (name !== supported) {
    throw new FloeError('engine_rejected', `Unsupported ${kind}: ${name}. It must be: ${supported}`);
  }
}

/**
 * Splits the text of a complete reply into thinking and the rest. Set `forced` when the prompt opened the thinking block, so that the text
 * begins inside it. When the closing delimiter is missing, all of the text is thinking.
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
 * Parses the tool calls in the text of a complete reply. A call is a complete `<tool_call>` block whose text is JSON and names one of
 * `tools`. The returned text ends before the first block; when no block is a valid call, it is the whole text.
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
    const call = parseCall(text.slice(start, end), tools);
    if (call !== null) calls.push(call);
    at = text.indexOf(CALL_OPEN, end + CALL_CLOSE.length);
  }
  return calls.length === 0 ? { text, calls } : { text: text.slice(0, first).trim(), calls };
}

/** Parses the text of one `<tool_call>` block. Returns `null` when the text is not a JSON object that names a tool of the request. */
function parseCall(text: string, tools: ReadonlySet<string>): TextCall | null {
  const value = parseJsonText(text);
  if (!isRecord(value)) return null;
  const { name, parameters } = value;
  if (typeof name !== 'string' || !tools.has(name)) return null;
  const raw = rawField(text, isFalsyInPython(parameters) ? 'arguments' : 'parameters');
  return { name, parameters: pythonJson(raw ?? '{}') };
}

function isFalsyInPython(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return !value;
  return Object.keys(value).length === 0;
}

const JSON_PARTS = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

/**
 * Reformats valid JSON text as Python's `json.dumps` does: one space after each comma and colon, no other white space, and escapes only
 * where JSON requires them. Numbers are not changed.
 */
export function pythonJson(text: string): string {
  const parts = text.match(JSON_PARTS) ?? [];
  return parts
    .map((part) => {
      if (part === ',' || part === ':') return `${part} `;
      return part.startsWith('"') ? JSON.stringify(JSON.parse(part)) : part;
    })
    .join('');
}

/** Returns the names of a request's tools. Entries that are not a function with a name are ignored. */
export function toolNames(tools: readonly unknown[] | null | undefined): ReadonlySet<string> {
  const names = (tools ?? []).map(
    (tool) => (tool as { readonly function?: { readonly name?: unknown } })?.function?.name,
  );
  return new Set(names.filter((name) => typeof name === 'string'));
}

type TextStreamOptions = {
  /** Whether the prompt opened the thinking block, so that the reply begins inside it. */
  readonly insideThinking: boolean;
  /** Whether thinking is separated. Thinking that is not separated stays in the content. */
  readonly separateReasoning: boolean;
  /** Names of the request's tools; `null` when tool calls are not parsed. */
  readonly tools: ReadonlySet<string> | null;
  readonly newCallId: (index: number) => string;
};

/** The result of one parsing step: a delta to show, `more` when another step can follow immediately, or `wait` when more text is needed. */
type Step = MessageDelta | 'more' | 'wait';

/**
 * Parses a reply's text incrementally, with the same delimiters as complete replies. A tool call is shown when its `<tool_call>` block is
 * complete; shown text is never retracted. Text after the first block is not shown. When no block was a valid call, the text of all blocks
 * is shown as content at the end of the reply.
 */
export class ReplyTextStream {
  private readonly options: TextStreamOptions;
  private state: 'begin' | 'reasoning' | 'content' | 'calls';
  /** Text that has not been assigned to reasoning, content or a call yet. */
  private buffer = '';
  /** All text from the first `<tool_call>` block on. It is shown as content when no block turns out to be a valid call. */
  private blocks = '';
  private callCount = 0;

  constructor(options: TextStreamOptions) {
    this.options = options;
    this.state = options.separateReasoning ? 'begin' : 'content';
  }

  get hasShownCalls(): boolean {
    return this.callCount > 0;
  }

  /** Adds text and returns the parts of the message to be shown. `last` is set when the reply is complete. */
  push(text: string, last: boolean): MessageDelta {
    this.buffer += text;
    if (this.state === 'calls') this.blocks += text;
    const deltas: MessageDelta[] = [];
    for (;;) {
      const step = this.step(last);
      if (step === 'wait') break;
      if (step !== 'more') deltas.push(step);
    }
    return joinDeltas(deltas);
  }

  private step(last: boolean): Step {
    switch (this.state) {
      case 'begin':
        return this.parseBegin(last);
      case 'reasoning':
        return this.showUpTo(THINK_CLOSE, last, 'reasoning');
      case 'content':
        return this.showUpTo(this.options.tools === null ? null : CALL_OPEN, last, 'content');
      case 'calls':
        return this.parseBlock(last);
    }
  }

  private parseBegin(last: boolean): Step {
    const opens = this.buffer.startsWith(THINK_OPEN);
    if (!opens && !last && THINK_OPEN.startsWith(this.buffer)) return 'wait';
    if (opens) this.buffer = this.buffer.slice(THINK_OPEN.length);
    this.state = opens || this.options.insideThinking ? 'reasoning' : 'content';
    return 'more';
  }

  /**
   * Returns buffered text as a delta. When the buffer contains `delimiter`, the delta ends before it, and the parser enters its next state.
   * Otherwise, text that may be the beginning of the delimiter stays in the buffer. `delimiter` is `null` for a state that lasts until the
   * end of the reply.
   */
  private showUpTo(delimiter: string | null, last: boolean, field: 'reasoning' | 'content'): Step {
    const index = delimiter === null ? -1 : this.buffer.indexOf(delimiter);
    if (delimiter !== null && index >= 0) {
      const shown = this.buffer.slice(0, index);
      if (field === 'reasoning') {
        this.buffer = this.buffer.slice(index + delimiter.length);
        this.state = 'content';
      } else {
        this.buffer = this.buffer.slice(index);
        this.blocks = this.buffer;
        this.state = 'calls';
      }
      return { [field]: shown };
    }
    const end = this.buffer.length - (delimiter === null || last ? 0 : heldBackLength(this.buffer, delimiter));
    if (end <= 0) return 'wait';
    const shown = this.buffer.slice(0, end);
    this.buffer = this.buffer.slice(end);
    return { [field]: shown };
  }

  private parseBlock(last: boolean): Step {
    const start = this.buffer.indexOf(CALL_OPEN);
    const end = start < 0 ? -1 : this.buffer.indexOf(CALL_CLOSE, start + CALL_OPEN.length);
    if (end >= 0) {
      const call = parseCall(this.buffer.slice(start + CALL_OPEN.length, end), this.options.tools ?? new Set());
      this.buffer = this.buffer.slice(end + CALL_CLOSE.length);
      if (call === null) return 'more';
      const index = this.callCount++;
      const id = this.options.newCallId(index);
      return {
        calls: [
          { index, id, name: call.name },
          { index, argumentsText: call.parameters },
        ],
      };
    }
    if (!last || this.hasShownCalls || this.blocks === '') return 'wait';
    const content = this.blocks;
    this.blocks = '';
    this.buffer = '';
    return { content };
  }
}

/** Returns the length of the longest suffix of `text` that is a proper prefix of `delimiter`. */
function heldBackLength(text: string, delimiter: string): number {
  for (let length = Math.min(text.length, delimiter.length - 1); length > 0; length--) {
    if (delimiter.startsWith(text.slice(text.length - length))) return length;
  }
  return 0;
}

function joinDeltas(deltas: readonly MessageDelta[]): MessageDelta {
  const reasoning = deltas.map((delta) => delta.reasoning ?? '').join('');
  const content = deltas.map((delta) => delta.content ?? '').join('');
  const calls = deltas.flatMap((delta) => delta.calls ?? []);
  return {
    ...(reasoning === '' ? {} : { reasoning }),
    ...(content === '' ? {} : { content }),
    ...(calls.length === 0 ? {} : { calls }),
  };
}
