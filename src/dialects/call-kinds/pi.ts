import type { Family } from './harness-rules.ts';

const SUMMARY_PROMPT = 'You are a context summarization assistant.';

/** pi has no sub-agents. It summarises the conversation, and the beginning of a turn that it cuts, each as one user message. */
export const pi: Family = {
  purpose(call) {
    const summarises = call.toolCount === 0 && !call.isAnswered() && call.system.startsWith(SUMMARY_PROMPT);
    return summarises ? 'compaction' : null;
  },
};
