// What the simulated policy does in a cell, as scenarios of docs/sim.md. They keep no state: a request is answered from its
// prompt alone, so it does not matter which side calls a harness makes in between.

/** In the prompt of every sub-agent, and in no instruction: tells a sub-agent's conversation from the main one. */
export const SUBAGENT_MARK = 'MATRIX-SUBAGENT';

/** Some tokens of every reply are drawn, so that the log-probabilities that are compared are no zeros. */
const THINK_TOKENS = 12;

/** The first of these that a request's format allows. */
const SIDE_REPLY = [
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

export const think = (tokens = THINK_TOKENS) => ({ think: { noise: tokens } });
export const say = (text) => ({ text });
export const call = (made) => ({ call: made });

/** A tool call in the template's own form with any text where the JSON should be. */
export const rawCall = (json) => ({ raw: `<tool_call>\n${json}\n</tool_call>` });

/** Ends the main agent's work; which of the two it is, is sampled. */
export const FINAL = [
  think(),
  {
    choice: {
      id: 'closing',
      options: [{ reply: [say('Everything that was asked for is done.')] }, { reply: [say('The task is finished.')] }],
    },
  },
];

/**
 * Holds for requests that offer the main agent's tools, which side calls do not. Looks for the definition itself: system
 * prompts have lists of tools of their own.
 */
export function offersTools(row) {
  const names = row.mainTools ?? [row.calls.shell('true').tool];
  const defined = names.map((name) => `(?=.*"name":\\s*"${name.replaceAll(/[^A-Za-z0-9_-]/g, '\\$&')}")`);
  return { system: { regex: `^${defined.join('')}` } };
}

/**
 * The main agent: `turns[i]` is its reply to a prompt with i earlier assistant turns, the last one for all further prompts.
 * `row.turnOffset`: assistant turns that the harness itself puts before the first reply.
 */
export function mainScenario(row, turns) {
  return {
    name: 'main',
    rules: byTurn(turns, row.turnOffset ?? 0).map(({ when, reply }) => ({
      when: { ...when, ...offersTools(row) },
      reply,
    })),
  };
}

/** A sub-agent that was started with {@link SUBAGENT_MARK} in its prompt. */
export function subagentScenario(row, turns) {
  const recognise = row.subagentWhen === undefined ? { match: { contains: SUBAGENT_MARK } } : {};
  return {
    name: 'subagent',
    ...recognise,
    rules: byTurn(turns, 0).map(({ when, reply }) => ({ when: { ...row.subagentWhen, ...when }, reply })),
  };
}

/** Whatever is none of the above: titles, routing, memory. */
export function sideScenario(row) {
  return { name: 'side', rules: [{ when: {}, reply: row.sideReply ?? SIDE_REPLY }] };
}

function byTurn(turns, offset) {
  return turns.map((reply, index) => {
    const turn = index + offset;
    const last = index === turns.length - 1;
    return { when: { assistant_turns: last ? { min: turn } : turn }, reply };
  });
}

/** A command that prints PASSED for the one node that the grader expects when `test` succeeds. */
export function grader(test) {
  return `if ${test}; then echo PASSED task; else echo FAILED task; fi`;
}
