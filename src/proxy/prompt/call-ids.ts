import type { AssistantMessage, ToolCall } from '../../schema/index.ts';

const COMPLETION_PREFIX = 'cpl_';
const CALL_ID = /^call_([0-9a-z]{1,32})_(0|[1-9][0-9]{0,5})$/;

/**
 * The id that the harness gets for call `index` of a completion. Engines number calls in their own ways, some the same in every
 * reply; this one is of one completion alone, known when the call begins, and valid in every dialect: up to 40 letters, digits
 * and underscores.
 */
export function callIdOf(completionId: string, index: number): string {
  return `call_${completionId.slice(COMPLETION_PREFIX.length)}_${index}`;
}

export type CallReference = { readonly completionId: string; readonly index: number };

/** Null for an id that {@link callIdOf} does not make. */
export function callNamed(id: string): CallReference | null {
  const [, rest, index] = CALL_ID.exec(id) ?? [];
  return rest === undefined ? null : { completionId: COMPLETION_PREFIX + rest, index: Number(index) };
}

/** A reply as the harness gets it. */
export function withOwnCallIds(message: AssistantMessage, completionId: string): AssistantMessage {
  const { tool_calls: calls } = message;
  if (calls === undefined) return message;
  const own = calls.map((call, index): ToolCall => ({ ...call, id: callIdOf(completionId, index) }));
  return { ...message, tool_calls: own };
}
