import { createInterface } from 'node:readline';
import {
  type EnvironmentDefinition,
  type EnvironmentServices,
  type Observation,
  parseEnvironmentConfig,
} from '@floe-rl/agents';
import { FloeError } from '@floe-rl/core';
import type { AssistantMessage, ChatMessage, ChatTool } from '@floe-rl/core/schema';
import { paint, printLine, printNote } from './print.ts';

/** Plays an episode with the lines of standard input, until it or the input ends, and prints its score. */
export async function playInTerminal(
  definition: EnvironmentDefinition,
  config: unknown,
  seed: number,
  services: EnvironmentServices,
): Promise<true> {
  const { signal } = services;
  const environment = definition.create(parseEnvironmentConfig(definition, config), services);
  try {
    const first = await environment.reset(seed);
    if (first === null) throw new FloeError('bad_request', `${definition.name} has no episode for the seed ${seed}`);
    let tools = first.tools ?? [];
    printObservation(first);
    printUsage(tools);
    const score = { total: 0, seats: new Map<string, number>(), end: 'not ended' };
    let index = 0;
    // Input is read only from here on. A line that arrives before the loop waits for it would be lost.
    const lines = createInterface({ input: process.stdin, signal });
    for await (const line of lines) {
      const result = await environment.step(replyFrom(line, tools, index++));
      if (result.answers !== undefined) printMessages(result.answers);
      printObservation(result);
      if (result.tools !== undefined) printUsage(result.tools);
      tools = result.tools ?? tools;
      score.total += result.reward;
      for (const [seat, reward] of Object.entries(result.seatRewards ?? {})) {
        score.seats.set(seat, (score.seats.get(seat) ?? 0) + reward);
      }
      score.end = result.terminated ? 'terminated' : result.truncated ? 'truncated' : score.end;
      if (result.terminated || result.truncated) break;
    }
    signal.throwIfAborted();
    const seats = [...score.seats].map(([seat, reward]) => `, ${seat} ${reward}`).join('');
    printLine(`score ${score.total}${seats} (${score.end})`);
    return true;
  } finally {
    process.stdin.destroy();
    await environment.close();
  }
}

/**
 * Returns the reply that a line stands for: the call of a tool, written as `move up`, `refund_order {"order_id": "W1", …}` or, where there is
 * one tool with one parameter, `up`. Without tools the line is the text of the reply.
 */
export function replyFrom(line: string, tools: readonly ChatTool[], index: number): AssistantMessage {
  if (tools.length === 0) return { role: 'assistant', content: line };
  const text = line.trim();
  if (text === '') return { role: 'assistant', content: '' };
  const [first = '', ...rest] = text.split(/\s+/);
  const named = tools.find(({ function: { name } }) => name === first);
  const only = tools.length === 1 ? tools[0] : undefined;
  const value = named === undefined && only !== undefined ? text : text.slice(first.length).trim();
  const tool = named ?? only;
  const name = tool?.function.name ?? first;
  const args = tool === undefined && rest.length === 0 ? '{}' : argumentsFrom(value, tool);
  return {
    role: 'assistant',
    content: null,
    tool_calls: [{ id: `call_${index}`, type: 'function', function: { name, arguments: args } }],
  };
}

/** Returns the JSON of a call's arguments. A value that does not begin with `{` is the value of the tool's first parameter. */
function argumentsFrom(value: string, tool: ChatTool | undefined): string {
  if (value.startsWith('{')) return value;
  const [parameter] = Object.entries(propertiesOf(tool));
  if (parameter === undefined || value === '') return '{}';
  const [name, { type }] = parameter;
  const isNumber = (type === 'integer' || type === 'number') && Number.isFinite(Number(value));
  return JSON.stringify({ [name]: isNumber ? Number(value) : value });
}

function propertiesOf(tool: ChatTool | undefined): Record<string, { type?: string; enum?: readonly unknown[] }> {
  return (tool?.function.parameters?.properties ?? {}) as Record<string, { type?: string; enum?: readonly unknown[] }>;
}

function printObservation({ messages, seat, introduction }: Observation): void {
  if (seat !== undefined) printLine(paint('dim', `(to ${seat})`));
  if (introduction !== undefined) printLine(introduction);
  printMessages(messages);
}

function printMessages(messages: readonly ChatMessage[]): void {
  for (const { content } of messages) {
    const parts = typeof content === 'string' || content === null ? [content ?? ''] : content.map(textOfPart);
    printLine(parts.join('\n'));
  }
  printLine();
}

function textOfPart(part: { readonly type: string; readonly text?: string }): string {
  return part.text ?? `[${part.type}]`;
}

/** Prints to standard error how tools are called. */
function printUsage(tools: readonly ChatTool[]): void {
  if (tools.length > 0) printNote(paint('dim', 'Type a line for each action:'));
  for (const tool of tools) {
    const parameters = Object.entries(propertiesOf(tool)).map(([name, schema]) => schema.enum?.join('|') ?? name);
    const isSimple = parameters.length === 1;
    const words = isSimple ? parameters[0]?.toUpperCase() : `{${parameters.map((name) => `"${name}": …`).join(', ')}}`;
    printNote(paint('dim', `  ${tool.function.name} ${isSimple && words?.includes('|') ? parameters[0] : words}`));
  }
}
