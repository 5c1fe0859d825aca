import type { AssistantMessage, ToolCall } from '@floe-rl/core/schema';

const COMPLETION_PREFIX = 'cpl_';
const CALL_ID = /^call_([0-9a-z]{1,32})_(0|[1-9][0-9]{0,5})$/;

/**
 * Returns the id of tool call `index` of a reply as the harness receives it. The engine's own id is not used, because engines number tool
 * calls differently and some repeat the same ids in every reply. The returned id identifies one tool call of one completion and is known
 * before the call is sampled. It is valid in every dialect: up to 40 letters, digits and underscores.
 */
export function callIdOf(completionId: string, index: number): string {
  return `call_${completionId.slice(COMPLETION_PREFIX.length)}_${index}`;
}

export type CallReference = { readonly completionId: string; readonly index: number };

/** Returns the completion and the index of the tool call that an id of {@link callIdOf} identifies; `null` for any other id. */
export function parseCallId(id: string): CallReference | null {
  const [, rest, index] = CALL_ID.exec(id) ?? [];
  return rest === undefined ? null : { completionId: COMPLETION_PREFIX + rest, index: Number(index) };
}

/** Returns the reply as the harness receives it: its tool calls have the ids that {@link callIdOf} returns. */
export function withCallIds(message: AssistantMessage, completionId: string): AssistantMessage {
  const { tool_calls: calls } = message;
  if (calls === undefined) return message;
  const renamed = calls.map((call, index): ToolCall => ({ ...call, id: callIdOf(completionId, index) }));
  return { ...message, tool_calls: renamed };
}
