// The scripted replies of the simulated policy in a test case, as scenarios in the format of docs/sim-scenarios.md. A reply depends only on
// its prompt, so additional side calls of a harness do not change the replies to the agent.
import type { ScenarioInput } from '@floe-rl/sim';
import type { Condition, Reply, Row, Rule, ToolCall } from './row.ts';

type Segment = Reply[number];

/**
 * A text that occurs in the prompt of every sub-agent, and not in the instruction of any task. By this text the simulated policy recognises
 * the requests of sub-agents.
 */
export const SUBAGENT_MARK = 'MATRIX-SUBAGENT';

/**
 * Default number of randomly drawn tokens at the start of a reply. Without random tokens all log-probabilities would be zero, and comparing
 * them would prove nothing.
 */
const THINK_TOKENS = 12;

/**
 * The default reply of the simulated policy to side calls of a harness, such as requests for a title. The policy chooses among the options
 * that the output format of the request allows.
 */
const SIDE_REPLY: Reply = [
  {
    choice: {
      id: 'side',
      options: [
        { reply: [{ text: 'A short task in a small folder.' }] },
        { reply: [{ text: '{"title":"Small task"}' }] },
      ],
    },
  },
];

export const think = (tokens = THINK_TOKENS): Segment => ({ think: { noise: tokens } });
export const say = (text: string): Segment => ({ text });
export const call = (made: ToolCall): Segment => ({ call: made });

/**
 * Returns a reply segment in the chat template's format for tool calls. `json` is used in place of the call's JSON and may be any text, so
 * the call can be malformed.
 */
export const rawCall = (json: string): Segment => ({ raw: `<tool_call>\n${json}\n</tool_call>` });

/** The last reply to the main agent. The simulated policy samples one of the two texts. */
export const FINAL: Reply = [
  think(),
  {
    choice: {
      id: 'closing',
      options: [{ reply: [say('Everything that was asked for is done.')] }, { reply: [say('The task is finished.')] }],
    },
  },
];

/**
 * Returns a condition that a request meets when it offers the main agent's tools, which side calls do not offer. The condition matches the
 * definitions of the tools, because system prompts also mention tool names elsewhere.
 */
export function offersTools(row: Row): Condition {
  const names = row.mainTools ?? [row.calls.shell('true').tool];
  const defined = names.map((name) => `(?=.*"name":\\s*"${name.replaceAll(/[^A-Za-z0-9_-]/g, '\\$&')}")`);
  return { system: { regex: `^${defined.join('')}` } };
}

/** Returns a condition that the main agent's prompt meets when it contains exactly `turn` replies of the simulated policy. */
export function mainTurn(row: Row, turn: number): Condition {
  return { assistant_turns: turn + (row.turnOffset ?? 0), ...offersTools(row) };
}

/**
 * Returns the scenario for the main agent: `turns[i]` is the reply to a prompt that contains i earlier replies. The last element is also
 * the reply to all longer prompts.
 */
export function mainScenario(row: Row, turns: readonly Reply[]): ScenarioInput {
  return { name: 'main', rules: rulesByTurn(turns, row.turnOffset ?? 0, offersTools(row)) };
}

/** Returns the scenario for a sub-agent. Its requests are recognised by `row.subagentWhen`, or by {@link SUBAGENT_MARK} in the prompt. */
export function subagentScenario(row: Row, turns: readonly Reply[]): ScenarioInput {
  return {
    name: 'subagent',
    ...(row.subagentWhen === undefined ? { match: { contains: SUBAGENT_MARK } } : {}),
    rules: rulesByTurn(turns, 0, row.subagentWhen),
  };
}

/** Returns the scenario for side calls: all calls that no other scenario matches, such as requests for a title. */
export function sideScenario(row: Row): ScenarioInput {
  return { name: 'side', rules: [{ when: {}, reply: row.sideReply ?? SIDE_REPLY }] };
}

function rulesByTurn(turns: readonly Reply[], offset: number, when: Condition | undefined): Rule[] {
  return turns.map((reply, index) => {
    const turn = index + offset;
    const isLast = index === turns.length - 1;
    return { when: { ...when, assistant_turns: isLast ? { min: turn } : turn }, reply };
  });
}

/**
 * Returns a shell command for the task's evaluator. When the shell condition `test` holds, the command prints that the check named `task`
 * passed, otherwise that it failed.
 */
export function grader(test: string): string {
  return `if ${test}; then echo PASSED task; else echo FAILED task; fi`;
}
