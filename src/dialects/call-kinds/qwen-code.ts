import type { Family } from './harness-rules.ts';
import type { CallView } from './prompt-view.ts';

/** What every sub-agent is told, of whichever kind. */
const SUBAGENT_MARK = 'return the final result as a normal model response (not a tool call) and stop';

const SUMMARY_PROMPT =
  'You are the component that summarizes a conversation when its context window is about to overflow.';
const SNAPSHOT_TAG = '<state_snapshot>';

/** How the agents begin that write down what later sessions may want to know. */
const MEMORY_PROMPTS = [
  'You are now acting as the managed memory extraction subagent',
  'You are performing a managed memory dream',
] as const;

/**
 * Qwen Code sends no header of its own. It asks for a summary after the conversation, with the agent's own prompt and tools
 * where the vendor caches prompts, and then without tools and with a prompt for it. Its JSON calls descend from Gemini CLI's.
 */
export const qwenCode: Family = {
  purpose(call) {
    if (isMemory(call)) return 'memory';
    const asked = call.toolCount === 0 ? call.system : call.lastUserText();
    return asked.trimStart().startsWith(SUMMARY_PROMPT) && call.lastUserText().includes(SNAPSHOT_TAG)
      ? 'compaction'
      : null;
  },
  subagent(call) {
    return call.system.includes(SUBAGENT_MARK) || isMemory(call);
  },
};

function isMemory(call: CallView): boolean {
  return MEMORY_PROMPTS.some((words) => call.system.startsWith(words));
}
