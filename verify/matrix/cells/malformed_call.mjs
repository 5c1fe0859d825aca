import { call, FINAL, grader, mainScenario, rawCall, sideScenario, think } from '../script.mjs';

/** Ways in which a policy gets a call wrong. The last one is no call at all for the engine: its text is the reply. */
const KINDS = {
  unknown_tool: () => [call({ tool: 'no_such_tool', arguments: { thing: 'x' } })],
  wrong_arguments: (shell) => [call({ tool: shell.tool, arguments: { no_such_argument: 'x' } })],
  no_object: (shell) => [rawCall(`{"name": ${JSON.stringify(shell.tool)}, "arguments": "echo hello"}`)],
  cut_off: (shell) => [rawCall(`{"name": ${JSON.stringify(shell.tool)}, "arguments": {"command": "ec`)],
};

/** What is in a reply of each kind, with the backslashes of quoting left out, and in no other reply. */
const SIGNS = {
  unknown_tool: /no_such_tool/,
  wrong_arguments: /no_such_argument/,
  no_object: /echo hello/,
  cut_off: /"ec(?!ho)/,
};

/**
 * Broken calls, then the work, then a call that was cut off. `row.malformed[kind]`: 'told' (default), the model is told of
 * its mistake; 'resampled', the harness asks again for the same turn and drops the broken reply; null, left out.
 */
export const cell = {
  name: 'malformed_call',
  title: 'broken tool calls: unknown tool, wrong arguments, arguments that are no object, cut-off JSON',
  build({ row }) {
    const shell = row.calls.shell('echo made > made.txt; echo wrote-made');
    const reaction = {
      unknown_tool: 'told',
      wrong_arguments: 'told',
      no_object: 'told',
      cut_off: 'told',
      ...row.malformed,
    };
    const broken = (kind) => {
      const bad = [...KINDS[kind](shell)];
      if (reaction[kind] !== 'resampled') return [think(), ...bad];
      const good = kind === 'cut_off' ? [{ text: 'Done.' }] : [call(shell)];
      return [think(), { choice: { id: kind, options: [{ logit: 1, reply: bad }, { reply: good }] } }];
    };
    const kinds = Object.keys(KINDS).filter((kind) => reaction[kind] !== null);
    return {
      instruction: 'Write the word made into made.txt.',
      scenarios: [
        mainScenario(row, [
          ...kinds.filter((kind) => kind !== 'cut_off').map(broken),
          [think(), call(shell)],
          ...(kinds.includes('cut_off') ? [broken('cut_off')] : []),
          FINAL,
        ]),
        sideScenario(row),
      ],
      grader: grader('grep -q made made.txt'),
      check({ byScenario }) {
        const wanted = kinds.length + 1;
        const replies = byScenario('main').map(({ message }) => JSON.stringify(message).replaceAll('\\', ''));
        const problems = kinds
          .filter((kind) => !replies.some((reply) => SIGNS[kind].test(reply)))
          .map((kind) => `no reply has a call of the kind ${kind}`);
        if (replies.length < wanted) {
          problems.push(`the policy gave ${replies.length} replies instead of at least ${wanted}`);
        }
        return problems;
      },
    };
  },
};
