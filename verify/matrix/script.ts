// The replies of the simulated policy in a cell, as scenarios of docs/sim-scenarios.md. They keep no state: a reply depends on its prompt
// alone, so that additional side calls of a harness change nothing.
import type { ScenarioInput } from '../../src/sim/index.ts';
import type { Condition, Reply, Row, Rule, ToolCall } from './row.ts';

type Segment = Reply[number];

/** A text that occurs in the prompt of every sub-agent and in no instruction. It identifies the conversations of sub-agents. */
export const SUBAGENT_MARK = 'MATRIX-SUBAGENT';

/** Number of randomly drawn tokens in every reply. Without these, all compared log-probabilities would be zero. */
const THINK_TOKENS = 12;

/**
 * The policy's reply to side calls of a harness, such as requests for a title: the first of these texts that the request's output format
 * allows.
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

/** Returns a tool call in the template's format, with any text in place of its JSON. */
export const rawCall = (json: string): Segment => ({ raw: `<tool_call>\n${json}\n</tool_call>` });

/** The main agent's last reply. Which of the two texts it has is sampled. */
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
 * Returns a condition that a request meets when it offers the main agent's tools; side calls do not. The condition matches the definition
 * of a tool, because system prompts contain other lists of tool names.
 */
export function offersTools(row: Row): Condition {
  const names = row.mainTools ?? [row.calls.shell('true').tool];
  const defined = names.map((name) => `(?=.*"name":\\s*"${name.replaceAll(/[^A-Za-z0-9_-]/g, '\\$&')}")`);
  return { system: { regex: `^${defined.join('')}` } };
}

/** Returns a condition that the main agent's prompt meets after `turn` replies of the policy. */
export function mainTurn(row: Row, turn: number): Condition {
  return { assistant_turns: turn + (row.turnOffset ?? 0), ...offersTools(row) };
}

/**
 * Returns the main agent's scenario: `turns[i]` is its reply to a prompt with i earlier replies, and the last element is the reply to all
 * further prompts.
 */
export function mainScenario(row: Row, turns: readonly Reply[]): ScenarioInput {
  return { name: 'main', rules: rulesByTurn(turns, row.turnOffset ?? 0, offersTools(row)) };
}

/** Returns the scenario of a sub-agent that was started with {@link SUBAGENT_MARK} in its prompt. */
export function subagentScenario(row: Row, turns: readonly Reply[]): ScenarioInput {
  return {
    name: 'subagent',
    ...(row.subagentWhen === undefined ? { match: { contains: SUBAGENT_MARK } } : {}),
    rules: rulesByTurn(turns, 0, row.subagentWhen),
  };
}

/** Returns the scenario of all other calls, such as those for titles, routing and memory. */
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

/** Returns a command that prints PASSED, for the one check that the evaluator expects, when the shell test `test` succeeds. */
export function grader(test: string): string {
  return `if ${test}; then echo PASSED task; else echo FAILED task; fi`;
}
