import { type ErrorCodec, floeErrors, isRecord } from '@floe-rl/core';
import { TOOL_FAILURES, ToolError, type ToolFailure } from '@floe-rl/sandbox';

/** How errors cross between the node and a process that runs agents: failures of tools as such, others as FloeErrors. */
export const agentErrors: ErrorCodec = {
  encode(thrown) {
    if (thrown instanceof ToolError) return { type: 'tool', reason: thrown.reason, message: thrown.message };
    return floeErrors.encode(thrown);
  },
  decode(message) {
    if (isRecord(message) && message.type === 'tool' && isToolFailure(message.reason)) {
      return new ToolError(message.reason, String(message.message));
    }
    return floeErrors.decode(message);
  },
};

function isToolFailure(reason: unknown): reason is ToolFailure {
  return TOOL_FAILURES.some((known) => known === reason);
}
