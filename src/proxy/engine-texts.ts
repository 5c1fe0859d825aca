import type { AssistantMessage, ChatMessage } from '../schema/index.ts';
import { MAX_BODY_VALUES } from './body.ts';
import { JsonTexts } from './json-text.ts';

/**
 * The texts of messages as engines take them. Engines read the arguments of every call in the history before they render it,
 * and refuse the whole request when a policy's broken arguments come back in it. As a JSON string the engine has them as
 * text, which templates write as it is. So go arguments that are nested too deeply or, with those before them, hold too many
 * values to be read. `texts` itself where there is nothing to change.
 */
export function engineTexts(messages: readonly ChatMessage[], texts: readonly string[]): readonly string[] {
  const readable = new JsonTexts(MAX_BODY_VALUES);
  let changed: string[] | null = null;
  for (const [index, message] of messages.entries()) {
    if (message.role !== 'assistant') continue;
    const asText = withReadableArguments(message, readable);
    if (asText === message) continue;
    changed ??= [...texts];
    changed[index] = JSON.stringify(asText);
  }
  return changed ?? texts;
}

/** The message itself where there is nothing to change. Engines take no text at all for no arguments. */
function withReadableArguments(message: AssistantMessage, readable: JsonTexts): AssistantMessage {
  let changed = false;
  const calls = message.tool_calls?.map((call) => {
    const { name, arguments: text } = call.function;
    if (text === '' || readable.isJson(text)) return call;
    changed = true;
    return { ...call, function: { name, arguments: JSON.stringify(text) } };
  });
  return changed ? { ...message, tool_calls: calls } : message;
}
