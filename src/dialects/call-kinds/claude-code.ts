import { type Family, headerOf } from './harness-rules.ts';
import type { CallView } from './prompt-view.ts';

/** The whole conversation, its newest part, or the one that a session goes on from. */
const SUMMARY_REQUEST =
  /(?:^|\n)Your task is to create a detailed summary of (?:the conversation so far|the RECENT portion of the conversation|this conversation)/;
/** What the answer is to be wrapped in, told in every form of the request. */
const SUMMARY_TAG = '<summary>';

/**
 * Claude Code names the sub-agent in a header. A request for a summary has the system prompt, tools and messages of the turn
 * before it, and one user text more; a sub-agent's has its header, too. Older versions ask for a title when they start.
 */
export const claudeCode: Family = {
  headers(headers) {
    const id = headerOf(headers, 'x-claude-code-agent-id');
    return id === null ? null : { agent: { kind: 'subagent', id }, purpose: null };
  },
  purpose(call) {
    if (asksForTitle(call)) return 'title';
    const text = call.lastUserText();
    return text.includes(SUMMARY_TAG) && SUMMARY_REQUEST.test(text) ? 'compaction' : null;
  },
};

/** As other harnesses do that ask for JSON: nothing but a title, and without tools. */
function asksForTitle(call: CallView): boolean {
  return call.asksFor('title') && !call.isAnswered();
}
