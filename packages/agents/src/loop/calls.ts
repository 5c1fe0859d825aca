import { isRecord } from '@floe-rl/core';
import type { AssistantMessage, ToolCall } from '@floe-rl/core/schema';
import { checkArguments } from '../tools/checked-arguments.ts';
import type { AnyTool } from '../tools/tool.ts';

/** What is wrong with a call that cannot be run. */
export const BROKEN_KINDS = ['bad_json', 'unknown_tool', 'bad_arguments'] as const;
export type BrokenKind = (typeof BROKEN_KINDS)[number];

/** A call whose arguments fit its tool. */
export type CheckedCall = {
  readonly call: ToolCall;
  readonly tool: AnyTool;
  readonly args: unknown;
};

/** A call that cannot be run. It is answered by `message`, and never mended silently: the policy should learn to write calls. */
export type BrokenCall = {
  readonly call: ToolCall;
  readonly kind: BrokenKind;
  readonly message: string;
};

/** Texts that start a tool call of some model. An engine that cannot parse a call leaves it in the text of the reply. */
const CALL_MARKS = ['<tool_call', '<function=', '[TOOL_CALLS]', '<|python_tag|>', '<｜tool▁call'];

/** Maximum length in characters of arguments that are parsed. */
const MAX_ARGUMENT_CHARS = 4 * 1024 * 1024;

/** Whether the text of a reply contains a tool call that the engine could not parse. */
export function hasUnparsedCall({ content }: AssistantMessage): boolean {
  return content !== null && CALL_MARKS.some((mark) => content.includes(mark));
}

/** Checks each call of a reply against the tools. */
export function checkCalls(
  calls: readonly ToolCall[],
  tools: ReadonlyMap<string, AnyTool>,
): readonly (CheckedCall | BrokenCall)[] {
  return calls.map((call) => checkCall(call, tools));
}

export function isBroken(call: CheckedCall | BrokenCall): call is BrokenCall {
  return 'kind' in call;
}

function checkCall(call: ToolCall, tools: ReadonlyMap<string, AnyTool>): CheckedCall | BrokenCall {
  const { name, arguments: text } = call.function;
  const tool = tools.get(name);
  if (tool === undefined) {
    return { call, kind: 'unknown_tool', message: `Error: there is no tool ${JSON.stringify(name.slice(0, 100))}.` };
  }
  const parsed = parseArguments(text);
  if ('problem' in parsed) {
    return { call, kind: 'bad_json', message: `Error: the arguments of ${name} ${parsed.problem}.` };
  }
  const checked = checkArguments(tool, parsed.value);
  if ('problem' in checked) {
    return { call, kind: 'bad_arguments', message: `Error: wrong arguments of ${name}: ${checked.problem}.` };
  }
  return { call, tool, args: checked.args };
}

function parseArguments(text: string): { readonly value: object } | { readonly problem: string } {
  if (text.length > MAX_ARGUMENT_CHARS) return { problem: `are longer than ${MAX_ARGUMENT_CHARS} characters` };
  // Engines send an empty text for a call without arguments.
  if (text.trim() === '') return { value: {} };
  try {
    const value: unknown = JSON.parse(text);
    if (isRecord(value)) return { value };
    return { problem: 'are not a JSON object' };
  } catch (error) {
    return { problem: `are not valid JSON: ${(error as Error).message}` };
  }
}
