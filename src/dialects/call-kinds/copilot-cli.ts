import { type Family, headerOf } from './harness-rules.ts';

/** Copilot CLI says that a call is a sub-agent's, not which one's. */
export const copilotCli: Family = {
  headers(headers) {
    if (headerOf(headers, 'x-interaction-type') !== 'conversation-subagent') return null;
    return { agent: { kind: 'subagent', id: null }, purpose: null };
  },
};
