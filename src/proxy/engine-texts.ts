import type { AssistantMessage, ChatMessage } from '../schema/index.ts';

/**
 * The texts of messages as engines take them. Engines read the arguments of every call in the history before they render it,
 * and refuse the whole request when a policy's broken arguments come back in it. As a JSON string the engine has them as
 * text, which templates write as it is. `texts` itself where there is nothing to change.
 */
export function engineTexts(messages: readonly ChatMessage[], texts: readonly string[]): readonly string[] {
  let changed: string[] | null = null;
  for (const [index, message] of messages.entries()) {
    if (message.role !== 'assistant' || !hasBrokenArguments(message)) continue;
    changed ??= [...texts];
    changed[index] = JSON.stringify(withReadableArguments(message));
  }
  return changed ?? texts;
}

function hasBrokenArguments({ tool_calls: calls = [] }: AssistantMessage): boolean {
  return calls.some((call) => !isReadable(call.function.arguments));
}

function withReadableArguments(message: AssistantMessage): AssistantMessage {
  const calls = message.tool_calls?.map((call) => {
    const { name, arguments: text } = call.function;
    return isReadable(text) ? call : { ...call, function: { name, arguments: JSON.stringify(text) } };
  });
  return { ...message, tool_calls: calls };
}

/** Engines take no text at all for no arguments. */
function isReadable(text: string): boolean {
  if (text === '') return true;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
