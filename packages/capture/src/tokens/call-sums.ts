import { isRecord } from '@floe-rl/core';
import {
  type CallSums,
  type DialectName,
  type RenderReason,
  type ToolCall,
  type ToolSums,
  timeIntervalOf,
} from '@floe-rl/core/schema';
import type { Completion } from './completion.ts';

/**
 * Name for calls of a tool that the request did not offer. The policy may sample any name, and the number of different names in the sums must
 * stay small.
 */
const UNKNOWN_TOOL = '(unknown)';
/** Name for the tools after the first {@link MAX_TOOLS}. */
const OTHER_TOOLS = '(other)';
const MAX_TOOLS = 32;
const MAX_NAME_CHARACTERS = 128;

type OpenCall = { readonly tool: MutableToolSums; readonly repliedMs: number };
type MutableToolSums = { -readonly [Name in keyof ToolSums]: ToolSums[Name] };

/**
 * Sums the model calls and the tool calls of an attempt. `kindOf` returns the kind of an engine, `null` for an engine that is not known any
 * more. `failures` has the number of failed calls of each tool as far as the agent counted them. The tool calls of a reply that the agent
 * replaced or never received are not counted, because none was run.
 */
export function callSumsOf(
  completions: readonly Completion[],
  kindOf: (engineId: string) => string | null,
  failures: Readonly<Record<string, number>> = {},
): CallSums {
  const dialects = new Set<DialectName>();
  const engines = new Set<string>();
  const rendered: Partial<Record<RenderReason, number>> = {};
  let [spliced, engineMs] = [0, 0];
  for (const { dialect, engineId, capture, engineMs: ms } of completions) {
    dialects.add(dialect);
    const kind = kindOf(engineId);
    if (kind !== null) engines.add(kind);
    const { rendered_because: reason } = capture;
    if (reason === null) spliced++;
    else rendered[reason] = (rendered[reason] ?? 0) + 1;
    engineMs += ms;
  }
  const tools = toolSumsOf(completions);
  for (const tool of tools) tool.failures += failures[tool.name] ?? 0;
  return { dialects: [...dialects], engines: [...engines], engine_ms: engineMs, spliced, rendered, tools };
}

function toolSumsOf(completions: readonly Completion[]): MutableToolSums[] {
  const tools = new Map<string, MutableToolSums>();
  const open = new Map<string, OpenCall>();
  const ordered = [...completions].sort((a, b) => a.index - b.index);
  for (const { request, message, timestampMs, totalMs, abandoned, undelivered } of ordered) {
    if (open.size > 0) {
      for (const answer of request.messages) {
        if (answer.role !== 'tool') continue;
        const call = open.get(answer.tool_call_id);
        if (call === undefined) continue;
        open.delete(answer.tool_call_id);
        addTime(call.tool, Math.max(0, timestampMs - call.repliedMs));
      }
    }
    if (abandoned || undelivered) continue;
    for (const call of message.tool_calls ?? []) {
      const isOffered = request.tools.some((tool) => tool.function.name === call.function.name);
      const tool = toolOf(tools, isOffered ? call.function.name : UNKNOWN_TOOL);
      tool.calls++;
      if (!isOffered || !hasObject(call)) tool.failures++;
      open.set(call.id, { tool, repliedMs: timestampMs + totalMs });
    }
  }
  return [...tools.values()];
}

function toolOf(tools: Map<string, MutableToolSums>, fullName: string): MutableToolSums {
  const own = fullName.slice(0, MAX_NAME_CHARACTERS);
  const name = tools.has(own) || tools.size < MAX_TOOLS ? own : OTHER_TOOLS;
  const known = tools.get(name) ?? { name, calls: 0, failures: 0, total_ms: 0, times: {} };
  tools.set(name, known);
  return known;
}

function addTime(tool: MutableToolSums, ms: number): void {
  const interval = String(timeIntervalOf(ms));
  tool.total_ms += ms;
  tool.times[interval] = (tool.times[interval] ?? 0) + 1;
}

/** Whether the arguments of a tool call are a JSON object. */
function hasObject({ function: { arguments: text } }: ToolCall): boolean {
  try {
    const parsed: unknown = JSON.parse(text);
    return isRecord(parsed);
  } catch {
    return false;
  }
}
