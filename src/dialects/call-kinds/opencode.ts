import { type Family, headerOf } from './harness-rules.ts';

const TITLE_PROMPT = 'You are a title generator. You output ONLY a thread title.';
const SUMMARY_PROMPT = 'You are a context summarization agent.';

/**
 * opencode gives each sub-agent a session of its own and names its parent. Its requests for summaries name no parent, so a
 * sub-agent's counts as the main agent's.
 */
export const opencode: Family = {
  headers(headers) {
    if (headerOf(headers, 'x-parent-session-id') === null) return null;
    return { agent: { kind: 'subagent', id: headerOf(headers, 'x-session-id') }, purpose: null };
  },
  purpose(call) {
    if (call.toolCount > 0 || call.isAnswered()) return null;
    if (call.system.startsWith(TITLE_PROMPT)) return 'title';
    return call.system.startsWith(SUMMARY_PROMPT) ? 'compaction' : null;
  },
};
