// What the simulated policy does in a cell, as scenarios of docs/sim-scenarios.md. They keep no state: a reply depends on its prompt alone, so
// that side calls which a harness makes in between change nothing.
import type { ScenarioInput } from '../../src/sim/index.ts';
import type { Condition, Reply, Row, Rule, ToolCall } from './row.ts';

type Segment = Reply[number];

/** Part of the prompt of every sub-agent and of no instruction, so that it identifies the conversation of a sub-agent. */
export const SUBAGENT_MARK = 'MATRIX-SUBAGENT';

/** Some tokens of every reply are drawn, so that the log-probabilities that are compared are not all zero. */
const THINK_TOKENS = 12;

/** The first of these that the request's format allows. */
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

/** A tool call in the template's own form with any text in place of its JSON. */
export const rawCall = (json: string): Segment => ({ raw: `<tool_call>\n${json}\n</tool_call>` });

/** Ends the main agent's work; which of the two texts it is, is sampled. */
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
 * Holds for requests that offer the main agent's tools, which side calls do not. It matches the definition of a tool, because system
 * prompts have lists of tools of their own.
 */
export function offersTools(row: Row): Condition {
  const names = row.mainTools ?? [row.calls.shell('true').tool];
  const defined = names.map((name) => `(?=.*"name":\\s*"${name.replaceAll(/[^A-Za-z0-9_-]/g, '\\$&')}")`);
  return { system: { regex: `^${defined.join('')}` } };
}

/** Holds for the main agent's prompt with `turn` earlier replies of the policy. */
export function mainTurn(row: Row, turn: number): Condition {
  return { assistant_turns: turn + (row.turnOffset ?? 0), ...offersTools(row) };
}

/** The main agent: `turns[i]` is its reply to a prompt with i earlier replies, the last one to all further prompts. */
export function mainScenario(row: Row, turns: readonly Reply[]): ScenarioInput {
  return { name: 'main', rules: rulesByTurn(turns, row.turnOffset ?? 0, offersTools(row)) };
}

/** A sub-agent that was started with {@link SUBAGENT_MARK} in its prompt. */
export function subagentScenario(row: Row, turns: readonly Reply[]): ScenarioInput {
  return {
    name: 'subagent',
    ...(row.subagentWhen === undefined ? { match: { contains: SUBAGENT_MARK } } : {}),
    rules: rulesByTurn(turns, 0, row.subagentWhen),
  };
}

/** Every other call: titles, routing, memory. */
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

/** A command that prints PASSED for the one check that the evaluator expects when `test` succeeds. */
export function grader(test: string): string {
  return `if ${test}; then echo PASSED task; else echo FAILED task; fi`;
}
