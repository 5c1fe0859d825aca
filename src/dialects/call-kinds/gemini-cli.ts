import type { Family } from './harness-rules.ts';

/** With it, and with nothing else, a sub-agent ends its work; the prompt of every one says so. */
const SUBAGENT_TOOL = 'complete_task';
const SUBAGENT_MARK = 'ONLY way to complete your mission';

const SNAPSHOT_PROMPT = 'You are a specialized system component responsible for distilling chat history';
const SNAPSHOT_TAG = '<state_snapshot>';

/** Fields of the JSON that decides what runs next: whose turn it is, whether the agent goes in circles, which model answers. */
const DECISIONS = [
  ['reasoning', 'next_speaker'],
  ['unproductive_state_analysis', 'unproductive_state_confidence'],
  ['reasoning', 'model_choice'],
  ['complexity_reasoning', 'complexity_score'],
] as const;

/** Gemini CLI sends no header of its own. */
export const geminiCli: Family = {
  purpose(call) {
    if (DECISIONS.some((fields) => call.asksFor(...fields))) return 'routing';
    const distils = call.toolCount === 0 && call.system.trimStart().startsWith(SNAPSHOT_PROMPT);
    return distils && call.system.includes(SNAPSHOT_TAG) ? 'compaction' : null;
  },
  subagent(call) {
    return call.hasTool(SUBAGENT_TOOL) && call.system.includes(SUBAGENT_MARK);
  },
};
