import { z } from 'zod';
import type { AssistantMessage, ToolCall } from '../schema/index.ts';

/** The calls of a message that comes whole. */
export const callsSchema = z
  .array(z.looseObject({ id: z.string(), function: z.looseObject({ name: z.string(), arguments: z.string() }) }))
  .nullish();

/** Calls without the fields that only some servers add. */
export function toolCalls(calls: z.output<typeof callsSchema>): ToolCall[] {
  return (calls ?? []).map(({ id, function: { name, arguments: text } }) => ({
    id,
    type: 'function',
    function: { name, arguments: text },
  }));
}

/** A message as the API has it: what is not there is left out, and text that is not there is null beside calls. */
export function assistantMessage(content: string, reasoning: string, calls: readonly ToolCall[]): AssistantMessage {
  return {
    role: 'assistant',
    content: content === '' && calls.length > 0 ? null : content,
    ...(reasoning === '' ? {} : { reasoning_content: reasoning }),
    ...(calls.length === 0 ? {} : { tool_calls: [...calls] }),
  };
}

/** The text of a message with these calls: white space alone beside calls is layout. */
export function besideCalls(text: string, calls: readonly ToolCall[]): string {
  return calls.length > 0 && text.trim() === '' ? '' : text;
}
